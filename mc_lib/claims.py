"""All claims, in the order of the book; chapters show them, and tests measure them."""

from mc_lib import claims_seeds
from mc_lib.claim import Claim, Study, table, table_html

CLAIMS: tuple[Claim, ...] = (*claims_seeds.OTHERS, *claims_seeds.CLAIMS)
CHAPTERS = {claim.id: claim.chapter for claim in CLAIMS}

__all__ = ["CHAPTERS", "CLAIMS", "Claim", "Study", "of_chapter", "table", "table_html"]


def of_chapter(chapter: str) -> list[Claim]:
    return [claim for claim in CLAIMS if claim.chapter == chapter]
