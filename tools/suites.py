"""The tests of other libraries that are run with our functions in place of theirs: a table.

`tools/upstream.py` runs them. The modules of `tools/in_place/` put ours in place.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Suite:
    """Tests of a library.

    Attributes
    ----------
    name : str
    needs : tuple of str
        The packages that tests need, first the one whose tests they are.
    find : callable
        Puts tests into a folder, or finds an installed copy; returns where to run them.
    tests : tuple of str
        Files and options for pytest.
    differences : dict of str to str
        Tests that fail with ours, as patterns of :mod:`fnmatch`, and why we stand by it.
    plugin : str
        A module of `in_place` that is imported before the tests, and puts ours in place of theirs.
        It writes to a file how often it has served and refused a call.
    support : tuple of str
        Modules of `in_place` that tests need with and without ours.
    every : int
        One test of so many is run, and all of those that fail with ours.
    besides : tuple of str
        Names of tests that always run.
    """

    name: str
    needs: tuple[str, ...]
    find: Callable[[Path], Path]
    tests: tuple[str, ...]
    differences: dict[str, str]
    plugin: str = "installed"
    support: tuple[str, ...] = ()
    every: int = 1
    besides: tuple[str, ...] = ()


def from_sdist(package: str, part: str) -> Callable[[Path], Path]:
    """Return a function that extracts tests from a package's sdist, by pip: wheels have none."""

    def find(folder: Path) -> Path:
        wanted = f"{package}=={version(package)}"
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
        command += ["--no-deps", "--no-binary", package, "--dest", str(folder), wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [*folder.glob(f"{package.replace('-', '_')}-*.tar.gz")]
        if not found:
            raise SystemExit(f"pip finds no sdist of {wanted}: {done.stderr.strip()[-500:]}")
        with tarfile.open(found[0]) as archive:
            root = archive.getnames()[0].partition("/")[0]
            members = [m for m in archive if m.name.startswith(f"{root}/{part}")]
            archive.extractall(folder, members, filter="data")
        return folder / root

    return find


def from_package(package: str) -> Callable[[Path], Path]:
    """Return a function that finds the tests in an installed package."""

    def find(folder: Path) -> Path:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).parents[1]

    return find


def from_git(repository: str, commit: str) -> Callable[[Path], Path]:
    """Return a function that clones a commit of a repository, with its submodules."""

    def find(folder: Path) -> Path:
        root = folder / repository.rpartition("/")[2]
        for command in (
            ["clone", "-q", "--no-checkout", f"https://github.com/{repository}", str(root)],
            ["-C", str(root), "checkout", "-q", commit],
            ["-C", str(root), "submodule", "-q", "update", "--init"],
        ):
            done = subprocess.run(["git", *command], capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"git does not get {repository}: {done.stderr.strip()[-500:]}")
        return root

    return find


_BLOCKS = "a test of the blocks that flox makes, of which ours makes none"
_RESULT = "theirs raises an error, ours has the result"
_WARNING = "no warning of a product that overflows between chunks"
_COMPLEX = "NumPy's variance of complex numbers with dtype=float has a mean without imaginary part"
_SHAPES = "positions of an array of labels have its shape; SciPy's are transposed or flat"
_ABSENT = "histograms are one array, with zeros for a label without elements; theirs are objects"
_HALF = "results of float16 are float16"
_PLACES = "places of infinity and not of NaN beside it; those of float16 are float32"
_LAST = "a line with NaN has no ranks, as in SciPy"
_WORDS = "an error in other words"
_ROWS = "an index along three axes is in one chunk, theirs is in three"
_BYTES = "a warning in other words: ours has the bytes that are computed in memory"
_LAST_ELEMENT = "a mean with alpha of 1 is the last element, as in pandas"


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "flox",
            ("flox", "sparse"),
            from_sdist("flox", "tests"),
            ("tests/test_core.py",),
            {
                "test_1d_blockwise_sort_optimization": _BLOCKS,
                "test_groupby_scan_blockwise_auto_rechunk": _BLOCKS,
            },
        ),
        Suite(
            "dask",
            ("dask",),
            from_package("dask"),
            tuple(
                f"dask/array/tests/test_{name}.py"
                for name in (
                    *("reductions", "routines", "percentiles", "stats", "overlap", "masked"),
                    *("slicing", "linalg", "array_function", "array_core", "creation", "reshape"),
                    *("sparse", "ufunc", "wrap"),
                )
            ),
            {
                "test_array_cumreduction_axis[blelloch-None-False-cumprod]": _WARNING,
                "test_array_cumreduction_axis[blelloch-None-False-nancumprod]": _WARNING,
                "test_array_cumreduction_axis[blelloch-None-True-cumprod]": _WARNING,
                "test_array_cumreduction_axis[blelloch-None-True-nancumprod]": _WARNING,
                "test_empty_chunk_nanmin_nanmax[nanmin]": _RESULT,
                "test_empty_chunk_nanmin_nanmax[nanmax]": _RESULT,
                "test_quantile_func_family_with_axis_none[quantile]": _RESULT,
                "test_quantile_func_family_with_axis_none[nanquantile]": _RESULT,
                "test_quantile_func_family_with_axis_none[nanpercentile]": _RESULT,
                "test_reductions_1D[c8]": _COMPLEX,
                "test_reductions_2D[c8]": _COMPLEX,
                "test_histogram_bin_range_raises[10-None]": _RESULT,
                "test_histogram_delayed_n_bins_raises_with_density": _RESULT,
                "test_bias_raises": _RESULT,
                "test_histogramdd_raises_incompat_sample_chunks": _RESULT,
                "test_histogramdd_raises_incompat_multiarg_chunks": _RESULT,
                "test_histogramdd_raises_incompat_weight_chunks": _RESULT,
                "test_array_notimpl_function_dask[*]": _BYTES,
                "test_full_detects_da_dtype": _BYTES,
                "test_non_existent_func": "numpy.sort is lazy, and warns of nothing",
                "test_argwhere_reshaping_not_concatenating_chunks": _ROWS,
            },
        ),
        Suite(
            "xarray",
            ("xarray", "bottleneck", "pyarrow"),
            from_package("xarray"),
            tuple(
                f"xarray/tests/test_{name}.py"
                for name in (
                    *("dask", "duck_array_ops", "groupby", "rolling", "computation"),
                    *("interp", "missing", "weighted", "coarsen", "dataarray", "dataset"),
                )
            ),
            {
                "test_reduce": _RESULT,
                "test_interpolate_dask_raises_for_invalid_chunk_dim": _RESULT,
            },
        ),
        Suite("xhistogram", ("xhistogram",), from_package("xhistogram"), ("xhistogram/test",), {}),
        Suite(
            "xclim",
            ("xclim", "pooch"),
            from_sdist("xclim", "tests"),
            tuple(f"tests/test_{name}.py" for name in ("run_length", "generic", "stats")),
            {},
            support=("for_xclim",),
        ),
        Suite(
            "numbagg",
            ("numbagg", "bottleneck"),
            from_package("numbagg"),
            tuple(
                f"numbagg/test/test_{name}.py"
                for name in ("grouped", "funcs", "moving", "moving_exp", "property")
            ),
            {
                **{
                    f"test_numerical_results_identical[{name}-*]": _HALF
                    for name in ("nansum", "nanmean", "nanstd", "nanvar", "move_mean")
                },
                "test_move_exp_inf": _LAST_ELEMENT,
                "test_move_exp_nanmean_nan": _LAST_ELEMENT,
                "test_move_min_count_greater_than_window[*-move_mean]": _WORDS,
                "test_nanquantile_errors[*]": _WORDS,
            },
            plugin="of_numbagg",
        ),
        Suite(
            "bottleneck",
            ("bottleneck",),
            from_package("bottleneck"),
            tuple(
                f"bottleneck/tests/{name}_test.py"
                for name in ("move", "reduce", "nonreduce_axis", "input_modification", "list_input")
            ),
            {
                "test_nonreduce_axis[rankdata]": _LAST,
                "test_nonreduce_axis[push]": "without an axis, what is flat is filled",
                "test_push": "limits are 1 or more",
                "test_move[move_arg*]": _PLACES,
                "test_move[move_rank]": "ranks of float16 are float32",
            },
            plugin="of_bottleneck",
        ),
        Suite(
            "dask-image",
            ("dask-image",),
            from_sdist("dask-image", "tests"),
            ("tests/test_dask_image/test_ndmeasure/test_core.py",),
            {
                "test_measure_props[shape1?-chunks1?-True-ind1?-m*_position]": _SHAPES,
                "test_measure_props[shape1?-chunks1?-True-ind1?-center_of_mass]": _SHAPES,
                "test_extrema[shape1?-chunks1?-True-ind1?]": _SHAPES,
                "test_histogram[0-1-5-*-True-100]": _ABSENT,
                "test_histogram[0-1-5-*-True-ind*]": _ABSENT,
            },
            plugin="of_dask_image",
        ),
        Suite(
            "xskillscore",
            ("xskillscore",),
            from_sdist("xskillscore", ""),
            tuple(
                f"xskillscore/tests/test_{name}.py"
                for name in ("comparative", "contingency", "deterministic", "probabilistic")
            ),
            {},
        ),
        Suite(
            "climpred",
            ("climpred",),
            from_package("climpred"),
            tuple(
                f"climpred/tests/test_{name}.py"
                for name in (
                    *("HindcastEnsemble_class", "PerfectModelEnsemble_class", "bias_removal"),
                    *("compute_dims", "metrics_perfect", "probabilistic", "reference"),
                    *("uninitialized", "valid_time"),
                )
            ),
            {},
            support=("for_climpred",),
            every=10,
        ),
        Suite(
            "xarray-spatial",
            ("xarray-spatial",),
            from_package("xrspatial"),
            tuple(
                f"xrspatial/tests/test_{name}.py"
                for name in ("zonal", "classify", "focal", "multispectral", "terrain")
            ),
            {},
        ),
        Suite(
            "array-api-compat",
            ("array-api-compat", "ndindex", "pytest-json-report"),
            from_git("data-apis/array-api-tests", "55fcc60179efa2680ddd6cd926ddf17b83530e2b"),
            tuple(
                f"array_api_tests/test_{name}.py"
                for name in (
                    *("statistical_functions", "searching_functions", "set_functions"),
                    *("sorting_functions", "utility_functions"),
                )
            ),
            {},
            support=("for_array_api",),
        ),
    )
}
