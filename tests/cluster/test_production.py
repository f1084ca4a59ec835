"""What docs/production.md tells of TLS and of containers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, Security
from support.clusters import cluster, on_workers, persist, values

import dask_coop as dc

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "production.md").read_text()


@pytest.mark.xdist_group("production")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_collectives_over_tls(tmp_path: Path, fallbacks: Any) -> None:
    # As the page says how to make them.
    (script,) = re.findall(r"```bash\n(openssl .*?)```", PAGE, re.DOTALL)
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "key.pem").stat().st_mode & 0o077 == 0
    files = {
        f"tls_{role}_{what}": str(tmp_path / f"{what}.pem")
        for role in ("scheduler", "worker", "client")
        for what in ("cert", "key")
    }
    security = Security(tls_ca_file=str(tmp_path / "cert.pem"), require_encryption=True, **files)
    host = np.random.default_rng(0).normal(size=2000)
    with cluster(2, security=security, protocol="tls://") as client:
        x = persist(client, host, 100)
        assert dc.sum(x, engine="collective") == pytest.approx(host.sum(), rel=1e-14)
        # A table that workers send one another.
        found, _ = dc.histogram(x, 50_000, (-5, 5), engine="collective")
        np.testing.assert_array_equal(found, np.histogram(host, 50_000, (-5, 5))[0])
        running = dc.cumsum(x, axis=0, engine="collective")
        np.testing.assert_allclose(values(client, running), host.cumsum(), rtol=1e-9)
        assert all(address.startswith("tls://") for address in on_workers(client))
        assert fallbacks() == []
        # Whoever does not speak TLS is hung up on.
        address = client.scheduler.address.replace("tls", "tcp")
        with pytest.raises(OSError, match=r"tcp:|Timed out"):
            # As a default it would stay one, though it never came to be.
            Client(address, timeout=2, set_as_default=False)
        del running, x


#: Uses what compiles, what keeps, and what asks where to.
USES = """
import os
from pathlib import Path
import dask.array as da, dask_coop as dc
from dask_coop.cli import info
if __name__ == "__main__":
    assert os.getuid() == {uid}
    assert "HOME" not in os.environ
    x = da.ones((1000, 1000), chunks=500)
    print(float(dc.sum(x).compute()))
    print(info.facts()["cache"])
    print(info.facts()["loops"])
"""


def as_user(uid: int, folder: Path, **environment: str) -> list[str]:
    """Return the lines that a process prints, of a user whom no file tells of, without a home."""
    script = folder / "uses.py"
    script.write_text(USES.format(uid=uid))
    for part in (folder, *folder.parents):
        # Up to where others have access anyway.
        if part.stat().st_mode & 0o005 == 0o005:
            break
        part.chmod(part.stat().st_mode | 0o005)
    folder.chmod(0o777)
    become = []
    if uid != os.getuid():
        # It may read what this user may, as the packages of a container can be read, and no more.
        may = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
        become = ["setpriv", "--reuid", f"{uid}", "--regid", f"{uid}", "--clear-groups", *may]
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), **environment}
    command = [*become, sys.executable, str(script)]
    done = subprocess.run(command, env=given, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [*done.stdout.splitlines(), done.stderr]


RIGHT = ["1000000.0"]


def test_without_a_home_caches_are_where_they_can_be(tmp_path: Path) -> None:
    *right, cache, loops, _ = as_user(os.getuid(), tmp_path)
    assert right == RIGHT
    # Of a user who has a name, the system knows the home.
    assert cache == str(Path.home() / ".cache" / "dask_coop") or cache.startswith("none: ")
    assert loops.startswith(("/", "none: "))


@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="only root becomes another user"
)
def test_an_unknown_user_without_a_home(tmp_path: Path) -> None:
    folder = tmp_path / "unknown"
    folder.mkdir()
    *right, cache, loops, said = as_user(12345, folder)
    assert right == RIGHT
    assert cache.startswith("none: Could not determine home")
    assert loops.startswith("none: ")
    assert "compiled loops are not kept: the user has no home folder." in said
    assert [path.name for path in folder.iterdir()] == ["uses.py"]
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o755)
    os.chown(kept, 12345, 12345)
    folders = {"DASK_COOP_CACHE": str(kept / "kernels"), "NUMBA_CACHE_DIR": str(kept / "loops")}
    *right, cache, loops, said = as_user(12345, folder, **folders)
    assert right == RIGHT
    assert cache == folders["DASK_COOP_CACHE"]
    assert loops.startswith(folders["NUMBA_CACHE_DIR"])
    # A processor that is slow adds the line on loops that are compiled.
    assert "not kept" not in said
    assert list((kept / "loops").rglob("*.nbc"))


def test_the_dockerfile_has_no_home_and_says_where_caches_are() -> None:
    lines = (REPOSITORY / "examples" / "Dockerfile").read_text().splitlines()
    said = [line.split(maxsplit=1) for line in lines if line and not line.startswith(("#", " "))]
    names = [name for name, _ in said]
    assert names[0] == "FROM"
    assert ["USER", "12345:0"] in said
    (environment,) = (text for name, text in said if name == "ENV")
    for name in ("DASK_COOP_CACHE", "NUMBA_CACHE_DIR"):
        assert f"{name}=/" in environment
    assert "HOME" not in environment.replace("CUDA_HOME", "")
