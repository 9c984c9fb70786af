"""Directives for the measured figures in docs/benchmarks/.

`{benchmark} TOPIC/RECORD` is one table with its source, `{benchmark-records} TOPIC` has all records of a
topic, `{benchmark-summary}` and `{benchmark-machines}` are the tables of summary.json and machines.json.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from directives import benchmark_data as data


class _Tables(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        for file in data.FOLDER.glob("*.json"):
            self.env.note_dependency(str(file))
        return self.parse_text_to_nodes(self.markdown())

    def markdown(self) -> str:
        raise NotImplementedError


class Record(_Tables):
    """One record."""

    required_arguments = 1

    def markdown(self) -> str:
        found = data.record(self.arguments[0])
        return f"{data.table(found)}\n\n{_small(data.source(found))}"


class Records(_Tables):
    """All records of a topic, each with a target by its id."""

    required_arguments = 1

    def markdown(self) -> str:
        parts = []
        for found in data.topic(self.arguments[0])["records"]:
            parts += [
                f"({found['id']})=",
                f"```{{rubric}} {found['what'][0].upper()}{found['what'][1:]}\n```",
            ]
            parts += [data.table(found), found.get("notes", ""), _small(data.source(found))]
        return "\n\n".join(parts)


class Summary(_Tables):
    """How fast smdp is: one row for each task."""

    def markdown(self) -> str:
        lines = ["| Task | times as fast | smdp | peer | |", "| --- | ---: | ---: | ---: | --- |"]
        for row in data.summary():
            path = row["record"]
            ours, unit = data.figure(path, row["row"], row["smdp"])
            theirs, _ = data.figure(
                path, row.get("peer_row", row["row"]), row["smdp" if "peer_row" in row else "peer"]
            )
            if "ratio" in row:
                ratio = data.text(data.single(data.figure(path, row["row"], row["ratio"])[0]), "x")
            else:
                ratio = f"{data.single(theirs) / data.single(ours):.2f}{data.TIMES}"
            task = f"[{row['task']}](#{path.partition('/')[2]})"
            times = (one.get("median") if isinstance(one, dict) else one for one in (ours, theirs))
            values = [data.text(one, unit, digits=3) for one in times]
            lines.append(f"| {task} | **{ratio}** | {values[0]} | {values[1]} | {row['peer']} |")
        return "\n".join(lines)


class Machines(_Tables):
    """The machines."""

    def markdown(self) -> str:
        lines = ["| Machine | Processor | memcpy of 25 MB |", "| --- | --- | ---: |"]
        lines += [
            f"| {one['name']} | {one['cpu']}, {one['os']} | {one.get('memcpy of 25 MB', '')} |"
            for one in data.machines().values()
        ]
        return "\n".join(lines)


def _small(text: str) -> str:
    return f":::{{container}} source\n{text}\n:::"


def setup(app: Sphinx) -> None:
    app.add_directive("benchmark", Record)
    app.add_directive("benchmark-records", Records)
    app.add_directive("benchmark-summary", Summary)
    app.add_directive("benchmark-machines", Machines)
