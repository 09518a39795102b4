"""Makes the web edition from the committed notebooks. scripts/site starts it.

    scripts/site            build/site/index.html
    scripts/site --zip      also build/course-VERSION.zip, and its SHA-256 in build/course-VERSION.zip.sha256
    scripts/site --slides 05 06    only slides of these lessons: build/slides/05_distributed_sampler.html, …

Exit status: 0 made, 1 not made, 2 bad input, 130 stopped by Ctrl-C.
"""

import hashlib
import os
import sys
import zipfile
from pathlib import Path

import yaml

import files
import layout
from course import rank_program
from course.lesson import ROOT

LONG_AGO = (1980, 1, 1, 0, 0, 0)  # so that the same pages give the same checksum


def archive(folder, target):
    """Packs `folder` into `target`, whole or not at all; the checksum stands beside it, as `sha256sum -c` reads it."""
    with files.whole(target) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            packed.writestr(zipfile.ZipInfo(f"{target.stem}/{path.relative_to(folder).as_posix()}", LONG_AGO),
                            path.read_bytes(), zipfile.ZIP_DEFLATED)
    checksum = hashlib.sha256(target.read_bytes()).hexdigest()
    target.with_name(f"{target.name}.sha256").write_text(f"{checksum}  {target.name}\n")


def main():
    parser = rank_program.parser(__doc__)
    parser.prog = "scripts/site"
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--zip", action="store_true", help="also make an archive of the site, with its checksum")
    either.add_argument("--executed", action="store_true",
                        help="make it from what scripts/run has executed, where that is newer than what is committed")
    either.add_argument("--slides", nargs="+", metavar="NN", help="make slides of these lessons, and no site")
    args = parser.parse_args()
    os.chdir(ROOT)
    try:
        if args.slides:
            import slides  # late: it brings nbconvert

            names = {path.stem[:2]: path.stem for path in sorted(Path("notebooks").glob("[0-9][0-9]_*.ipynb"))}
            if unknown := [number for number in args.slides if number not in names]:
                parser.error(f"--slides: no lesson {', '.join(unknown)}; there are {', '.join(names)}")
            for number in args.slides:
                page, count = slides.write(names[number])
                print(f"{count} slides: {page.resolve().as_uri()}")
            return 0
        page = layout.build(args.executed)
    except RuntimeError as failed:
        print(f"scripts/site: {failed}", file=sys.stderr)
        return 1
    print(f"the site: {page.resolve().as_uri()}")
    if args.zip:
        version = yaml.safe_load(Path("CITATION.cff").read_text(encoding="utf-8"))["version"]
        target = Path(f"build/course-{version}.zip")
        archive(page.parent, target)
        print(f"its archive: {target}, {target.stat().st_size / 1e6:.1f} MB, and {target}.sha256")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
