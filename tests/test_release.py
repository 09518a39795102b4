"""scripts/release, in a repository whose tests and site are played."""

import hashlib
import shutil
import subprocess

import pytest

from tests import runner

FILES = {"CITATION.cff": 'version: "1.1" # its tag: v1.1\n', ".gitignore": "build/\n", "scripts/test": "mkdir build\n",
         "scripts/site": "mkdir build/site\necho page > build/site/index.html\n",
         "CHANGELOG.md": "# Changelog\n\n## 1.1 (2026-12-01)\n\n# Said\n\n## 1.0 (2026-11-25)\n"}


@pytest.fixture
def shell(tmp_path):
    """shell(command) prints in a repository that is ready for release 1.1."""
    def shell(command):
        return subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60,
                              env=runner.environment(**{f"GIT_{each}": "a" for each in (
                                  "AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL")}))

    (tmp_path / "scripts").mkdir()
    shutil.copy2(runner.ROOT / "scripts/release", tmp_path / "scripts")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    assert shell("git init -qb main && git add . && git commit -qm one").returncode == 0
    return shell


def test_a_release_is_tested_packed_and_tagged(shell, tmp_path):
    done = shell("scripts/release")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith(": git push --atomic origin main v1.1")
    said = shell("git tag -l --format='%(objecttype) %(contents)' v1.1").stdout
    assert said.strip() == "tag Version 1.1 (2026-12-01)\n\n# Said"
    (archive,) = tmp_path.glob("build/*.tar.gz")
    checksum = f"{hashlib.sha256(archive.read_bytes()).hexdigest()}  {archive.name}\n"
    assert archive.with_name(f"{archive.name}.sha256").read_text() == checksum
    shutil.unpack_archive(archive, tmp_path)
    assert (tmp_path / "data-parallel-course-1.1-site/index.html").read_text() == "page\n"


@pytest.mark.parametrize(("command", "status", "why"), [
    ("touch draft; scripts/release", 2, "changes"),
    ("git switch -qc other; scripts/release", 2, "branch main"),
    ("sed -i s/1.1/1.2/ CITATION.cff; git commit -qam two; scripts/release", 2,
     'version 1.2, and CHANGELOG.md begins with "## 1.1 (2026-12-01)"'),
    ("git tag v1.1 HEAD; git commit -q --allow-empty -m two; scripts/release", 2, "there is a tag v1.1"),
    ("scripts/release --untested", 2, "unknown option --untested"),
    ("echo exit 1 >> scripts/test; git commit -qam two; scripts/release", 1, "the tests failed"),
    ("echo touch draft >> scripts/test; git commit -qam two; scripts/release", 2, "changes"),
])
def test_it_refuses_in_one_line_and_tags_nothing(command, status, why, shell):
    done = shell(f"({command}) > /dev/null")
    assert (done.returncode, len(done.stderr.splitlines())) == (status, 1) and why in done.stderr
    assert shell("git for-each-ref --format='%(objecttype)' refs/tags").stdout in ("", "commit\n")
