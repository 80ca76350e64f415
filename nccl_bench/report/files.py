"""The files of a report, one after another: pages first, so that what matters is there soonest. matplotlib is loaded here, when it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_bench.report.page import Document

PAGE, TEXT, PRINT = "report.html", "report.md", "report.pdf"


def contents(document: Document, formats: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of each file of these formats: html, md, png, svg, pdf. Charts are drawn once."""
    from nccl_bench.report import charts

    pictures = document.pictures()
    drawn = {picture.name: charts.svg(picture) for picture in pictures} if {"html", "svg"} & set(formats) else {}
    if "html" in formats:
        from nccl_bench.report.html import html

        yield PAGE, html(document, {picture.name: charts.inline(drawn[picture.name], picture) for picture in pictures}).encode()
    if "md" in formats:
        from nccl_bench.report.markdown import markdown

        ending = "png" if "png" in formats else "svg" if "svg" in formats else None
        shown = {picture.name: f"{picture.name}.{ending}" for picture in pictures} if ending else {}
        yield TEXT, markdown(document, shown).encode()
    if "svg" in formats:
        yield from ((f"{picture.name}.svg", drawn[picture.name].encode()) for picture in pictures)
    if "png" in formats:
        yield from ((f"{picture.name}.png", charts.png(picture)) for picture in pictures)
    if "pdf" in formats:
        from nccl_bench.report.charts_pdf import pdf

        yield PRINT, pdf(document)
