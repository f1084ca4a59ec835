"""The array API standard's tests for Dask's arrays: in chunks, with the same examples each time."""

import os

import pytest
from hypothesis import settings

os.environ["ARRAY_API_TESTS_MODULE"] = "array_api_compat.dask.array"


@pytest.hookimpl(trylast=True)
def pytest_configure():
    """Cut the arrays that tests make, and replace the profile of the tests' own configuration."""
    # Not before: functions of Dask that it imports may be ours by now.
    import array_api_compat.dask.array as xp

    reshape = xp.reshape

    def chunked(x, shape, **keywords):
        """Return an array of a shape in up to three chunks along each axis: strategies call it."""
        return reshape(x, shape, **keywords).rechunk(tuple(max(1, -(-n // 3)) for n in shape))

    xp.reshape = chunked
    settings.register_profile("again", max_examples=20, derandomize=True, deadline=None)
    settings.load_profile("again")
