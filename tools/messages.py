"""Write docs/errors.md: messages that need more words than they have, and what to do about each.

``python tools/messages.py --write`` writes it anew. Messages come from the source: the arguments of
dask_coop's exceptions and warnings. A test checks the page against the source, and another one that
messages which calls raise are among these. A message without advice here says itself what to do.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "dask_coop"
PAGE = REPOSITORY / "docs" / "errors.md"
BEGIN, END = "<!-- messages -->", "<!-- end of messages -->"

#: Headings, the prefixes of the modules whose messages stand there, and a text about all of them;
#: the longest prefix counts.
SECTIONS = {
    "Any function": ("__init__ algebra api chunks graph", ""),
    "Reductions": ("api/extrema api/moments api/norm api/sums api/dates", ""),
    "Scans": ("api/cumulative api/scan_arguments graph/scan", ""),
    "Histograms": (
        "api/histogram api/histogramdd api/bincount api/hist api/lazy_bins algebra/bins "
        "algebra/edges graph/histogram chunks/numpy/histogram chunks/cupy/histogram",
        "",
    ),
    "Order and selection": (
        "api/order api/topk api/selection api/unique algebra/digits algebra/quantiles "
        "graph/selection",
        "",
    ),
    "Groups": (
        "api/groups graph/grouped graph/group_scans graph/found_groups",
        "",
    ),
    "Windows, gaps and runs": ("api/windows api/fills api/runs", ""),
    "Matrices": ("api/linalg algebra/semirings", ""),
    "Custom operations": ("api/monoids", ""),
    "Installed in place of Dask's functions": (
        "api/install api/flox_calls api/xhistogram_calls api/explain api/call/report",
        "The original function runs a call that is `Refused`; `dask_coop.report()` shows the "
        'reason, and with `coop.fallback` "warn" or "raise" the call itself does.',
    ),
    "Labels and units": ("api/call/labelled api/call/units xarray", ""),
    "Files, GPUs and the node": (
        "api/transfer api/files chunks/files files chunks/cupy/backend compiled cuda node",
        "",
    ),
    "Clusters": (
        "cluster",
        "A collective that is `Declined` runs as a graph, with the same result; it is an error "
        'only if `coop.fallback` is "raise". [Collectives](collective.md) lists the reasons.',
    ),
    "Configuration": ("graph/config", ""),
    "The command line": ("cli", ""),
    "Faults of the library": (
        "chunks/cupy/matmul chunks/cupy/scan chunks/cupy/histogram_strategies chunks/one_by_one "
        "cuda/programs cuda/transfer chunks/masked",
        "",
    ),
}

#: Advice on messages by their beginnings, if they give none themselves.
ADVICE = {
    "{said}; {name} takes": "Dask's function has this argument, and ours does not. The message "
    "lists the arguments that ours takes.",
    "{refusal}; Dask has no {name} either": "Set `array.query-planning` to False, or "
    "convert the array as the first half of the message says.",
    "{refusal}; Dask's {name} would run instead, but has no": "Convert the array as the first "
    "half of the message says, or leave the argument out.",
    "{refusal}. So it was left": "The first half says why this library did not take the array, "
    "and the second half why Dask did not. Convert the array as one of them says.",
    "{cause}; with coop.fallback='allow'": '`coop.fallback` is "raise". Set it to "allow", or do '
    "what the first half of the message says.",
    "{name} {how}: {cause}": '`coop.fallback` is "warn". The result is right: Dask\'s function or '
    "a graph computed it, for the reason in the warning.",
    "{name} has {…} chunks and {other}": "Move one of them: `dc.to_gpu` or `dc.to_host`.",
    "out= takes no array of dask-array": "Under `install`, call dask-array's own function.",
    "{name} has chunks of type": "This library works on NumPy and CuPy chunks, not on sparse "
    "arrays and others.",
    "ptp does not take dtype bool": "Convert it, such as with `.astype('i1')`.",
    "For arrays which have more than one dimension": "Name the axis, or flatten the array.",
    "Too many bins for data range": "The bins would be narrower than the distance of neighbouring "
    "floats. Take fewer bins, or a wider range.",
    "cannot take a quantile of no elements": "The array is empty, or all of it is NaN.",
    "Automated estimation of the number of bins": "Give a number of bins, or edges.",
    "All-NaN slice encountered": "As NumPy's warning: some lines contain only NaN, and so are "
    "their results.",
    "monoid {name} {words}": "The message shows elements for which the law fails. Usually the "
    "identity is not neutral, or `combine` swaps its arguments.",
    "{name} needs CuPy and an NVIDIA GPU": "Install `[cuda12]` or `[cuda13]` where the task runs; "
    "on a cluster, on every worker.",
    "Node finds no NVIDIA GPU": "Does `nvidia-smi` list one? CUDA_VISIBLE_DEVICES may hide it.",
    "this does not compile for {arch}": "If the source belongs to a `Monoid`, correct its `cuda=` "
    "as the compiler's message says. Otherwise please report it.",
    "NVRTC cannot be loaded": "Install `[cuda12]` or `[cuda13]`; without a GPU `[nvrtc]`.",
    "device {ordinal} does not tell": "The driver is older than CUDA 12, or broken; see "
    "`nvidia-smi`.",
    "device {ordinal} refused": "The driver is older than CUDA 12, or broken; see `nvidia-smi`.",
    "GPU {ordinal} has no context": "Another process may use all of its memory; see `nvidia-smi`.",
    "GPU {ordinal} does not reach": "These GPUs cannot read each other's memory. Pass some of them "
    "to `Node` as `devices=`, or use LocalCUDACluster.",
    "the driver refused a launch": "MIG, MPS or exclusive mode may be the cause. Pass one GPU to "
    "`Node`, as `devices=[0]`, or use LocalCUDACluster.",
    "{what} gave up after": "A GPU hangs, or other processes keep it busy. Restart the process: "
    "its CUDA contexts may be broken.",
    "cannot read {span}": "The file system reports this. Can the worker read the file?",
    "the file ends before": "The file is shorter than when the array was made. Call `from_npy` "
    "again.",
    "its states are {nbytes}": "Nothing to do: a graph combines states of this size.",
    "chunk {key} is not in memory: it is {status}": "Persist the array, and wait for it.",
    "chunk {key} is not in memory: it is {state}": "Persist the array, and wait for it.",
    "the chunks of {name} are futures of": "Nothing to do: a graph runs there. Collectives need "
    "chunks that a `distributed.Client` has persisted.",
    "the chunks of {name} are not on workers": "Nothing to do: a graph runs there. Collectives "
    "need chunks that a `distributed.Client` has persisted.",
    "the chunks of {name} are not in memory": "Call `x = x.persist()` with a client.",
    "its chunks belong to several clients": "Make all arrays of a call with one client.",
    "the scheduler does not take part": "It has been restarted. Call again.",
    "distributed {version} or Dask": "This release does not know that version of Dask. Results are "
    "right. Install a newer release of dask_coop, or report the message.",
    "workers and scheduler cannot be prepared": "Install dask_coop on the scheduler and on all "
    "workers.",
    "worker {…} was lost": "Nothing to do: a graph has taken over.",
    "worker {address} would have to spill": "Use a graph, or workers with more memory. Smaller "
    "chunks do not help, because a collective holds all of them at the same time.",
}

#: Messages of exceptions whose argument is not a literal text; empty for those that repeat another
#: message.
_VERSIONS = (
    "{place} has {has}, and the client has {…}: install one version for the client, the scheduler "
    "and all workers",
)
NOT_WRITTEN: dict[tuple[str, str], tuple[str, ...]] = {
    ("algebra/bins", "str(error).replace('create 1 ', f'create {bins} ')"): (
        "max must be larger than min in range parameter.",
        "supplied range of [{first_edge}, {last_edge}] is not finite",
        "`bins` must be positive, when an integer",
        "`bins` must increase monotonically, when an array",
    ),
    ("api/call/fallback", "message"): (
        "{name} {how}: {cause}",
        "numpy.{name} computes its arrays{size} in memory: {cause}; {advice}",
    ),
    ("api/extrema", "nothing"): ("attempt to get {name} of an empty sequence",),
    ("api/flox_calls", "str(error)"): (),
    # Messages of other lines of the module.
    ("files/hdf5", "known[1]"): (),
    ("api/monoids/monoid", "caller"): (),
    ("api/order", "self.refusal.format(q[~inside].flat[0])"): (
        "Quantiles must be in the range [0, 1], got {…}; take percentile, or divide percentages "
        "by 100",
        "Percentiles must be in the range [0, 100], got {…}",
    ),
    ("api/monoids/ufuncs", "caller"): (),
    ("chunks/masked", "name.format(*args)"): (),
    ("chunks/masks", "name"): (),
    ("compiled/jit", "message"): (),
    ("cli/describe/hdf5", "answer['error']"): (),
    ("cli/describe/readers", "str(error)"): (),
    ("cluster/client", "answer['reason']"): _VERSIONS,
    ("cluster/plugin", "reason"): _VERSIONS,
    ("cluster/versions", "reason"): _VERSIONS,
    ("cluster/versions", "self.reason"): _VERSIONS,
    ("cuda/archive", "message"): (),
    ("cuda/disk_cache", "message"): (),
}


class Message(NamedTuple):
    """A message of an exception or a warning of a module, with names in place of values."""

    module: str
    kind: str
    text: str


class Module:
    """A module's source, and its constants that are texts."""

    def __init__(self, path: Path) -> None:
        self.name = path.relative_to(PACKAGE).as_posix().removesuffix(".py")
        self.tree = ast.parse(path.read_text())
        self.functions = [n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef)]
        self.constants: dict[str, str] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                text = written(node.value, {})
                if text is not None:
                    self.constants[node.targets[0].id] = text


def written(node: ast.expr, constants: dict[str, str]) -> str | None:
    """Return a literal text with names in braces; None if the node is not a text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(value.value)
            if isinstance(value, ast.Constant)
            else constants.get(called(value.value)) or f"{{{short(value.value)}}}"
            for value in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = written(node.left, constants), written(node.right, constants)
        return None if parts == (None, None) else "".join(part or "{…}" for part in parts)
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    return None


def called(node: ast.expr) -> str:
    """Return the name of a constant, or of a called function with "()"."""
    return f"{ast.unparse(node.func)}()" if isinstance(node, ast.Call) else ast.unparse(node)


def short(node: ast.expr) -> str:
    """Return a word for a value in a message."""
    if isinstance(node, ast.Name):
        return node.id.strip("_")
    if isinstance(node, ast.Attribute):
        return node.attr.strip("_")
    return "…"


def is_exception(name: str) -> bool:
    """Return whether a name is that of an exception or warning."""
    known = getattr(builtins, name.rpartition(".")[2], None)
    ours = name.rpartition(".")[2] in OURS
    return ours or (isinstance(known, type) and issubclass(known, BaseException))


#: Exceptions that are not builtins.
OURS = {
    node.name
    for node in ast.parse((PACKAGE / "errors.py").read_text()).body
    if isinstance(node, ast.ClassDef)
} | {"ArgumentTypeError", "CommClosedError", "refusal"}


def said_by(module: Module, everywhere: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each exception and warning that a module makes.

    Raises
    ------
    LookupError
        If a text is neither literal where it is raised nor in `NOT_WRITTEN`.
    """
    inside = {id(n): function for function in module.functions for n in ast.walk(function)}
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        is_warning = name in ("warnings.warn", "_warn_once")
        if not (is_exception(name) or is_warning):
            continue
        kind = ast.unparse(node.args[1]) if name == "warnings.warn" else name.rpartition(".")[2]
        kind = {"_warn_once": "RuntimeWarning", "refusal": "Refused or Declined"}.get(kind, kind)
        # Python uses AttributeError to test whether a name exists.
        if not node.args or kind == "AttributeError":
            continue
        # The first of two arguments of an OSError is a number.
        first = node.args[1 if kind == "OSError" and len(node.args) == 2 else 0]
        function = inside.get(id(node))
        found: Iterable[str] = [*texts(first, module, function, everywhere)]
        if not found:
            key = module.name, ast.unparse(first)
            if key not in NOT_WRITTEN:
                raise LookupError(f"what {key[0]} raises with {key[1]} is to be in NOT_WRITTEN")
            found = NOT_WRITTEN[key]
        for text in found:
            yield kind, text


def texts(
    node: ast.expr,
    module: Module,
    function: ast.FunctionDef | None,
    everywhere: dict[str, list[str]],
) -> Iterator[str]:
    """Yield the possible texts of a message: a literal one, or those assigned to its name."""
    if isinstance(node, ast.IfExp):
        yield from texts(node.body, module, function, everywhere)
        yield from texts(node.orelse, module, function, everywhere)
        return
    text = written(node, module.constants)
    if text is not None:
        yield text
    elif isinstance(node, ast.Name) and function is not None:
        for each in ast.walk(function):
            is_walrus = isinstance(each, ast.NamedExpr) and each.target.id == node.id
            if is_walrus or (
                isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == node.id
            ):
                yield from texts(each.value, module, function, everywhere)
    elif isinstance(node, ast.Call):
        yield from everywhere.get(ast.unparse(node.func), [])


def returned(modules: list[Module]) -> dict[str, list[str]]:
    """Return the texts of functions that return only texts."""
    found = {}
    for module in modules:
        for function in module.functions:
            values = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value]
            made = [written(value, module.constants) for value in values]
            kind = ast.unparse(function.returns) if function.returns else ""
            # None means that there is no message.
            said = [text for text in made if text]
            if said and (None not in made or "None" in kind) and kind.startswith("str"):
                found[function.name] = said
    return found


def collect() -> list[Message]:
    """Return all messages of the library, by module."""
    modules = [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]
    everywhere = returned(modules)
    single = {f"{name}()": made[0] for name, made in everywhere.items() if len(made) == 1}
    messages = {}
    for module in modules:
        module.constants |= single
        for kind, text in said_by(module, everywhere):
            messages[Message(module.name, kind, " ".join(text.split()))] = None
    return [*messages]


def section_of(module: str) -> str:
    """Return the heading for the messages of a module.

    Raises
    ------
    LookupError
        If no heading matches.
    """
    fits = [
        (len(start), heading)
        for heading, (starts, _) in SECTIONS.items()
        for start in starts.split()
        if module.startswith(start)
    ]
    if not fits:
        raise LookupError(f"the messages of {module} have no section in tools/messages.py")
    return max(fits)[1]


def advice_on(text: str) -> str:
    """Return the advice on a message, or an empty text."""
    fits = [start for start in ADVICE if text.startswith(start)]
    return ADVICE[max(fits, key=len)] if fits else ""


def figures() -> str:
    """Return the generated part of the page."""
    lines: dict[str, dict[str, list[str]]] = {heading: {} for heading in SECTIONS}
    for message in collect():
        kinds = lines[section_of(message.module)].setdefault(message.text, [])
        if message.kind not in kinds:
            kinds.append(message.kind)
    parts = []
    for heading, (_, help_) in SECTIONS.items():
        advised = {text: kinds for text, kinds in lines[heading].items() if advice_on(text)}
        if not advised and not help_:
            continue
        parts.append(f"## {heading}\n")
        if help_:
            parts.append(f"{help_}\n")
        for text, kinds in sorted(advised.items(), key=lambda item: item[0].lower()):
            shown = f"`` {text} ``" if "`" in text else f"`{text}`"
            parts.append(f"- {shown}  \n  {' or '.join(kinds)}. {advice_on(text)}")
        parts.append("")
    return "\n".join(parts).strip().replace("\n\n\n", "\n\n")


def page() -> str:
    """Return the page with new messages; the text around them stays."""
    before, after = PAGE.read_text().split(BEGIN)
    return f"{before}{BEGIN}\n\n{figures()}\n\n{END}{after.split(END)[1]}"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    PAGE.write_text(page())
