"""What a claim is: a sentence that can be measured on any run, with the rule that decides it.

A study is a run with what its claims share, computed once. A finding is what a claim's measurement gave: the
numbers in words, and whether the claim holds; None where the run cannot tell, with the reason in its note.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from mc_lib.config import Config, Refusal
from mc_lib.model import Weights
from mc_lib.runs import Run

VERDICTS = {True: "holds", False: "does not hold", None: "cannot be measured here"}


class NotHere(Exception):
    """This run cannot tell; the text is one line saying why."""


class Study:
    """A run under study. `shared` keeps what several claims or pages need, by name."""

    def __init__(self, run: Run):
        self.run = run
        self.config: Config = run.config
        self._shared: dict[Any, Any] = {}

    @cached_property
    def weights(self) -> Weights:
        """The last saved weights."""
        return self.run.weights()

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The logged metrics, from step 0 on."""
        if len(self.run.metrics) < 2:
            raise NotHere("the run has no metrics over training")
        return self.run.metrics

    def column(self, name: str) -> pd.Series:
        """One logged measure, indexed by step."""
        if name not in self.metrics:
            raise NotHere(f"the run's metrics lack {name}")
        series = self.metrics.set_index("step")[name]
        if series.isna().all():
            raise NotHere(f"{name} is not defined in this run's config")
        return series

    def shared(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """make(weights, config, *arguments), computed once."""
        key = (make.__module__, make.__qualname__, arguments)
        if key not in self._shared:
            self._shared[key] = make(self.weights, self.config, *arguments)
        return self._shared[key]


@dataclass(frozen=True)
class Finding:
    """What was measured, as it stands in a table, and whether the claim holds."""

    value: str
    holds: bool | None
    note: str = ""

    @property
    def verdict(self) -> str:
        return VERDICTS[self.holds]


@dataclass(frozen=True)
class Claim:
    """One claim. `paper` and `release` are what the text and the authors' released run give, "-" where neither does.

    `many` marks the claims that no single run can decide: they are about the sweeps saved beside it.
    """

    id: str
    chapter: str
    where: str
    statement: str
    paper: str
    release: str
    rule: str
    measure: Callable[[Study], Finding]
    about: str = ""
    many: bool = False

    def on(self, study: Study) -> Finding:
        """The finding on a run; a run that cannot tell says why and fails nothing."""
        try:
            return self.measure(study)
        except NotHere as reason:
            return Finding("-", None, str(reason))
        except Refusal as refusal:
            if not self.many:  # what lies beside a run and cannot be read is no fault of the run
                raise
            return Finding("-", None, str(refusal))


def first_step(series: pd.Series, level: float) -> int | None:
    """The first step at which a logged measure reaches `level`; None if it never does."""
    reached = series.index[series >= level]
    return int(reached[0]) if len(reached) else None


def table(claims: Sequence[Claim], study: Study) -> pd.DataFrame:
    """A row a claim: the paper's, the release's and this run's value, and the verdict."""
    rows = []
    for claim in claims:
        finding = claim.on(study)
        value = finding.value if finding.holds is not None else finding.note
        shown = (claim.statement, claim.paper, claim.release, value, claim.rule)
        rows.append((claim.id, finding.verdict, *shown))
    columns = ["claim", "verdict", "statement", "the paper", "the released run", "here", "holds if"]
    return pd.DataFrame(rows, columns=columns)


def table_html(findings: pd.DataFrame, chapters: dict[str, str] | None = None) -> str:
    """The table for a page: verdicts carry their class, and with `chapters` a claim links to the page it is from."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in findings.columns)
    rows = []
    for row in findings.to_dict("records"):
        cells = {name: html.escape(str(value)) for name, value in row.items()}
        name = cells["claim"]
        cells["claim"] = f'<a href="{chapters[row["claim"]]}.html">{name}</a>' if chapters else name
        verdict = cells["verdict"].replace(" ", "-")
        cells["verdict"] = f'<span class="mc-verdict mc-{verdict}">{cells["verdict"]}</span>'
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells.values()) + "</tr>")
    return f'<table class="mc-claims"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
