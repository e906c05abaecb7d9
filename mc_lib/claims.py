"""All claims, in the order of the book; chapters show them, and tests measure them."""

from mc_lib import claims_addition, claims_dynamics, claims_generalization, claims_induction
from mc_lib.claim import Claim, Study, table, table_html

CLAIMS: tuple[Claim, ...] = (
    *claims_generalization.CLAIMS,
    *claims_addition.CLAIMS,
    *claims_induction.CLAIMS,
    *claims_dynamics.CLAIMS,
)

__all__ = ["CLAIMS", "Claim", "Study", "of_chapter", "table", "table_html"]


CHAPTERS = {claim.id: claim.chapter for claim in CLAIMS}


def of_chapter(chapter: str) -> list[Claim]:
    return [claim for claim in CLAIMS if claim.chapter == chapter]
