"""Hook of mkdocs (mkdocs.yml): the reference is written from the code, and a page that somebody adds under docs/ finds its place."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SECTIONS = (("How to", "howto"), ("Explanation", "explanation"), ("Reference", "reference"))
"""Title and folder; what lies in docs/ itself comes before them, the tutorial first."""
FIRST = ("index.md", "tutorial.md")
LAST = ("claims.md",)


def on_config(config: Any) -> Any:
    """Write the reference, then list all pages that there are."""
    runpy.run_path(str(ROOT / "scripts/reference.py"), run_name="__main__")
    config.nav = nav(Path(config.docs_dir))
    return config


def nav(docs: Path) -> list[Any]:
    """The pages by section; those of docs/ itself that are neither first nor last are further explanations."""
    loose = sorted(path.name for path in docs.glob("*.md") if path.name not in (*FIRST, *LAST))
    listed: list[Any] = [name for name in FIRST if (docs / name).exists()]
    for title, folder in SECTIONS:
        pages = [f"{folder}/{path.name}" for path in sorted((docs / folder).glob("*.md"))]
        pages += loose if folder == "explanation" else []
        if pages:
            listed.append({title: pages})
    return [*listed, *(name for name in LAST if (docs / name).exists())]
