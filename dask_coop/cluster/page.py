"""The page /coop of a scheduler's dashboard: counters, and the last fallbacks.

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

from dask_coop.cluster.counts import FORMATS, fallbacks, showing, totals

ROUTE = "coop"


def add_page(scheduler: Scheduler) -> None:
    """Add the page to a scheduler's dashboard, if it has one."""
    applications = scheduler.http_application.applications
    servers = [server for server in applications if isinstance(server, BokehTornado)]
    if not servers:
        return
    variables = template_variables(scheduler)
    added = BokehApplication({f"/{ROUTE}": _page}, scheduler, servers[0].prefix, variables)
    scheduler.http_application.add_application(added)
    added.initialize(IOLoop.current())
    added.start()
    # The other pages have the same list.
    variables["pages"].append(ROUTE)


class Counts(DashboardComponent):  # type: ignore[misc]
    """Tables of the counters and of the last fallbacks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        # HTML, because Bokeh's tables cut off long cells, such as reasons.
        self.root: Any = Div(sizing_mode="stretch_width")

    def update(self) -> None:
        """Read the counters; bokeh calls this while somebody looks."""
        with showing():
            self._update()

    def _update(self) -> None:
        counts = [
            [activity, *(FORMATS[unit](units[unit]) if unit in units else "" for unit in FORMATS)]
            for activity, units in totals(self._scheduler).items()
        ]
        events = [
            [
                f"{datetime.fromtimestamp(event['time']):%H:%M:%S}",
                event["function"],
                event["reason"],
            ]
            for event in fallbacks(self._scheduler)
        ]
        self.root.text = _table(
            "Since the scheduler started, on all workers", ["activity", *FORMATS], counts
        ) + _table(
            "The last collectives that ran as graphs", ["time", "function", "reason"], events
        )


def _table(title: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return an HTML table."""
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
