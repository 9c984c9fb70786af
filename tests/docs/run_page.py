"""Run the code of a page as it stands there: `smdp run -n 2 run_page.py PAGE`.

A setup (setups/PAGE.py) makes what the page takes for given and checks what comes of it. It has

    run(number)           runs block `number`, from 0, in the setup's own names; run() all of them
    run(number, {...})    in other names
    skip(number, reason)  says why a block is not run here

Without a setup all blocks run, one after the other.
"""

from __future__ import annotations

import doctest
import sys
from pathlib import Path
from typing import Any

from pages import Block, blocks, setup_of


def main(page: Path) -> None:
    found = blocks(page, "python", "pycon")
    left = {at for at, block in enumerate(found) if block.reason is None}
    names: dict[str, Any] = {"__name__": "__main__"}

    def run(number: int | None = None, others: dict[str, Any] | None = None) -> None:
        for at in sorted(left) if number is None else [number]:
            assert found[at].reason is None, f"{found[at]} is not to be run: {found[at].reason}"
            left.discard(at)
            run_block(found[at], names if others is None else others)

    def skip(number: int, reason: str) -> None:
        print(f"{found[number]} is left out: {reason}")
        left.discard(number)

    names |= {"run": run, "skip": skip, "PAGE": page}
    setup = setup_of(page).path
    if setup is None:
        run()
    else:
        exec(compile(setup.read_text(encoding="utf-8"), setup, "exec"), names)
    assert not left, f"not run: {', '.join(str(found[at]) for at in left)}"


def run_block(block: Block, names: dict[str, Any]) -> None:
    if block.language == "python":
        # Blank lines first, so that a traceback names the line of the page.
        code = "\n" * block.line + block.text
        exec(compile(code, block.page, "exec"), names)
        return
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest(block.text, names, str(block), str(block.page), block.line)
    result = doctest.DocTestRunner(optionflags=options).run(test, clear_globs=False)
    names.update(test.globs)
    assert result.failed == 0, f"{block} printed something else"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
