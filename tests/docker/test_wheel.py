"""One name: all that is installed lies under ``wattcast``, however it was built."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BUILD = "import sys, hatchling.build as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of the checkout, and that of the sdist of the checkout."""
    folder = tmp_path_factory.mktemp("wheels")

    def build(what: str, source: Path, name: str) -> Path:
        target = folder / name
        target.mkdir()
        command = [sys.executable, "-c", BUILD, f"build_{what}", str(target)]
        made = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
        return target / made.stdout.split()[-1]

    shutil.unpack_archive(build("sdist", ROOT, "sdist"), folder)
    (unpacked,) = folder.glob("wattcast-*")
    return {
        "checkout": build("wheel", ROOT, "from-checkout"),
        "sdist": build("wheel", unpacked, "from-sdist"),
    }


def test_a_wheel_from_the_sdist_is_that_of_the_checkout(wheels: dict[str, Path]) -> None:
    files = {}
    for source, path in wheels.items():
        with zipfile.ZipFile(path) as wheel:
            files[source] = {name: wheel.read(name) for name in wheel.namelist()}
    assert files["checkout"].keys() == files["sdist"].keys()
    other = [name for name, held in files["checkout"].items() if files["sdist"][name] != held]
    assert [name for name in other if not name.endswith("/RECORD")] == []


def test_everything_lies_under_one_name(wheels: dict[str, Path], tmp_path: Path) -> None:
    """It answers in a folder with an ``app.py``, ``models/`` and the like of its own."""
    with zipfile.ZipFile(wheels["checkout"]) as wheel:
        assert "wattcast/py.typed" in wheel.namelist()  # its annotations count for its users
        top = {name.split("/")[0] for name in wheel.namelist()}
        wheel.extractall(tmp_path / "installed")
    assert {name for name in top if not name.endswith(".dist-info")} == {"wattcast"}
    here = tmp_path / "project"
    for name in ("features", "models", "training"):
        (here / name).mkdir(parents=True)
        (here / name / "__init__.py").write_text("raise ImportError('not this one')")
    (here / "app.py").write_text("raise ImportError('not this one')")
    ptx = tmp_path / "installed" / "wattcast" / "app" / "demo" / "vector_add.ptx"
    code = (
        f"import sys; sys.path[:0] = ['', {str(tmp_path / 'installed')!r}]\n"
        "import wattcast\nfrom pathlib import Path\n"
        f"answer = wattcast.predict(Path({str(ptx)!r}), gpu='v100', grid=4096, block=256)\n"
        "print(wattcast.__file__, answer.power.watts)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=here, check=True, capture_output=True, text=True
    )
    file, watts = answer.stdout.split()
    assert file.startswith(str(tmp_path / "installed"))
    assert float(watts) > 20
