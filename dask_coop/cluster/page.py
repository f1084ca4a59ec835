"""The page /coop of a scheduler's dashboard: what was counted, and the last fallbacks.

Importing this needs bokeh.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from html import escape
from typing import Any

from bokeh.models import Div
from bokeh.server.tornado import BokehTornado
from distributed import Scheduler
from distributed.dashboard.components import DashboardComponent, add_periodic_callback
from distributed.dashboard.components.scheduler import BOKEH_THEME, env
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables
from tornado.ioloop import IOLoop

from dask_coop.cluster.counts import WRITTEN, fallbacks, showing, totals

ROUTE = "coop"


def add_page(scheduler: Scheduler) -> None:
    """Add the page to a scheduler's dashboard, if it has one."""
    applications = scheduler.http_application.applications
    own = [each for each in applications if isinstance(each, BokehTornado)]
    if not own:
        return
    variables = template_variables(scheduler)
    added = BokehApplication({f"/{ROUTE}": _page}, scheduler, own[0].prefix, variables)
    scheduler.http_application.add_application(added)
    added.initialize(IOLoop.current())
    added.start()
    # The other pages have the same list.
    variables["pages"].append(ROUTE)


class Counts(DashboardComponent):  # type: ignore[misc]
    """Tables of what was counted, and of the last fallbacks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        # Bokeh's own tables cut off what is long, as reasons are.
        self.root: Any = Div(sizing_mode="stretch_width")

    def update(self) -> None:
        """Read what was counted; bokeh calls this while somebody looks."""
        with showing():
            self._update()

    def _update(self) -> None:
        counts = [
            [activity, *(WRITTEN[unit](units[unit]) if unit in units else "" for unit in WRITTEN)]
            for activity, units in totals(self._scheduler).items()
        ]
        told = [
            [
                f"{datetime.fromtimestamp(event['time']):%H:%M:%S}",
                event["function"],
                event["reason"],
            ]
            for event in fallbacks(self._scheduler)
        ]
        self.root.text = _table(
            "Since the scheduler started, on all workers", ["activity", *WRITTEN], counts
        ) + _table("The last collectives that ran as graphs", ["time", "function", "reason"], told)


def _table(title: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in HTML."""
    style = "text-align: left; vertical-align: top; padding: 2px 24px 2px 0"
    lines = [
        "".join(f'<{tag} style="{style}">{escape(str(cell))}</{tag}>' for cell in row)
        for tag, row in [("th", head), *(("td", row) for row in rows)]
    ]
    return f"<h2>{title}</h2><table><tr>{'</tr><tr>'.join(lines)}</tr></table>"


def _page(scheduler: Scheduler, extra: dict[str, Any], doc: Any) -> None:
    counts = Counts(scheduler)
    counts.update()
    doc.title = "Dask: Coop"
    doc.add_root(counts.root)
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)
    doc.theme = BOKEH_THEME
    add_periodic_callback(doc, counts, 500)
