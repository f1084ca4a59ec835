"""The page /coop of a scheduler's dashboard: what was counted, and the last fallbacks.

Importing this needs bokeh.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bokeh.layouts import column
from bokeh.models import ColumnDataSource, DataTable, Div, TableColumn
from bokeh.server.tornado import BokehTornado
from distributed import Scheduler
from distributed.dashboard.components import DashboardComponent, add_periodic_callback
from distributed.dashboard.components.scheduler import BOKEH_THEME, env
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables
from tornado.ioloop import IOLoop

from dask_coop.cluster import monitor

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
        self.counts = ColumnDataSource({name: [] for name in ("activity", *monitor.WRITTEN)})
        self.fallbacks = ColumnDataSource({name: [] for name in ("time", "function", "reason")})
        tables = (
            ("Since the scheduler started, on all workers", self.counts, 500),
            ("The last collectives that ran as graphs", self.fallbacks, 300),
        )
        children: list[Any] = []
        for title, source, height in tables:
            columns = [TableColumn(field=name, title=name.title()) for name in source.data]
            table = DataTable(
                source=source,
                columns=columns,
                index_position=None,
                height=height,
                sizing_mode="stretch_width",
            )
            children += [Div(text=f"<h2>{title}</h2>"), table]
        self.root = column(*children, sizing_mode="stretch_width")

    def update(self) -> None:
        """Read what was counted; bokeh calls this while somebody looks."""
        found = monitor.totals(self._scheduler)
        self.counts.data = {
            "activity": [*found],
            **{
                unit: [written(units[unit]) if unit in units else "" for units in found.values()]
                for unit, written in monitor.WRITTEN.items()
            },
        }
        last = monitor.fallbacks(self._scheduler)
        self.fallbacks.data = {
            "time": [f"{datetime.fromtimestamp(event['time']):%H:%M:%S}" for event in last],
            **{name: [event[name] for event in last] for name in ("function", "reason")},
        }


def _page(scheduler: Scheduler, extra: dict[str, Any], doc: Any) -> None:
    counts = Counts(scheduler)
    counts.update()
    doc.title = "Dask: Coop"
    doc.add_root(counts.root)
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)
    doc.theme = BOKEH_THEME
    add_periodic_callback(doc, counts, 500)
