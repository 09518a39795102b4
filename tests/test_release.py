"""scripts/release, in a repository whose tests and site are played."""

import hashlib
import shutil
import subprocess

import pytest

from tests import runner

FILES = {"CITATION.cff": 'version: "1.1" # its tag: v1.1\n', ".gitignore": "build/\n", "scripts/test": "mkdir build\n",
         "scripts/run": "cp CITATION.cff lesson\n", "lesson": 'version: "1.1" # its tag: v1.1\n',
         "scripts/site": "mkdir build/site\necho page > build/site/index.html\n",
         "CHANGELOG.md": "# Changelog\n\n## 1.1 (2026-12-01)\n\n# Said\n\n## 1.0 (2026-11-25)\n"}
GIT = {f"GIT_{who}_{what}": "a" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@pytest.fixture
def shell(tmp_path):
    """shell(command) runs in a repository that is ready for release 1.1."""
    (tmp_path / "scripts").mkdir()
    shutil.copy2(runner.ROOT / "scripts/release", tmp_path / "scripts")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return lambda command: subprocess.run(
        "chmod +x scripts/*; git init -qb main && git add . && git commit -qm one; " + command, shell=True,
        cwd=tmp_path, env=runner.environment(**GIT), capture_output=True, text=True, timeout=60)


def test_a_release_is_tested_packed_and_tagged(shell, tmp_path):
    done = shell("scripts/release && git tag -l --format='%(objecttype) %(contents)'")
    assert (done.returncode, done.stderr) == (0, "")
    assert ": git push --atomic origin main v1.1\ntag Version 1.1 (2026-12-01)\n\n# Said\n" in done.stdout
    (archive,) = tmp_path.glob("build/*.tar.gz")
    assert done.stdout.startswith(archive.with_name(f"{archive.name}.sha256").read_text())
    assert done.stdout.startswith(f"{hashlib.sha256(archive.read_bytes()).hexdigest()}  {archive.name}\n")
    shutil.unpack_archive(archive, tmp_path)
    assert (tmp_path / "data-parallel-course-1.1-site/index.html").read_text() == "page\n"


@pytest.mark.parametrize(("before", "status", "why"), [
    ("touch draft", 2, "changes"),
    ("git switch -qc other", 2, "branch main"),
    ("sed -i s/1.1/1.2/ CITATION.cff; git commit -qam two", 2, "version 1.2, and CHANGELOG.md begins with \"## 1.1 ("),
    ("git tag v1.1", 2, "there is a tag v1.1"),
    ("sed -i s/1.1/1.0/ lesson; git commit -qam two", 2, "by scripts/run --build: commit them"),
    ("echo exit 1 >> scripts/test; git commit -qam two", 1, "the tests failed"),
    ("echo touch draft >> scripts/test; git commit -qam two", 2, "changes")])
def test_it_refuses_in_one_line_and_tags_nothing(before, status, why, shell):
    done = shell(f"{before}; git tag; scripts/release > /dev/null; status=$?; git tag; exit $status")
    assert (done.returncode, len(done.stderr.splitlines())) == (status, 1) and why in done.stderr
    assert done.stdout in ("", "v1.1\nv1.1\n"), "no tag more than before"
