#!/usr/bin/env python3
"""Writes the tables of docs/pytorch.md and README.md that come from records of perf/torch, of every machine in
perf/results, between their two lines <!-- perf/torch/tables.py NAME --> and <!-- end -->.

    perf/torch/tables.py [--check]

A table whose records are not there stays as it is. --check writes nothing and ends with 1 where a table is not that of
its records.
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "perf" / "results"
DOCUMENTS = [ROOT / "docs" / "pytorch.md", ROOT / "README.md"]
OPERATIONS = ["all_reduce", "all_gather", "broadcast", "all_to_all", "ping_pong"]
PLACE = re.compile(r"(?P<begin><!-- perf/torch/tables\.py (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end -->)", re.S)
SHOWN = [4, 1 << 10, 64 << 10, 256 << 10, 4 << 20, 64 << 20]


def size(bytes_):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if bytes_ >= unit:
            return f"{bytes_ // unit} {name}"
    return f"{bytes_} B"


def markdown(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def processor(records):
    return records[0]["machine"]["processor"].replace("(R)", "").removesuffix(" Processor")


def state(records, launcher):
    """What they were taken with; launcher(record) comes before the command."""
    first, machine = records[0], records[0]["machine"]
    commands = "".join(f"    {launcher(record)} {record['command']}\n" for record in records)
    commits = ", ".join(dict.fromkeys(record["commit"] for record in records))
    return (f"torch {first['torch']}, {processor(records)}, {machine['cores']} cores, {machine['state'] or 'state not noted'}; "
            f"commit {commits}:\n\n{commands}")


def torchrun(record):
    return f"torchrun --standalone --nproc_per_node={record['ranks']}"


def operations(records):
    rows = []
    for name in OPERATIONS:
        for record in records:
            of = {row["bytes"]: row for row in record["rows"] if row["operation"] == name}
            rows.append([name, record["ranks"], *(f"{of[b]['ratio']:.2f}" if "ratio" in of.get(b, {}) else "-" for b in SHOWN)])
    every = [row["ratio"] for record in records for row in record["rows"] if "ratio" in row]
    text = markdown(["Chorus / Gloo", "ranks", *map(size, SHOWN)], rows)
    text += f"\nAll {len(every)} rows ({len(records[0]['rows']) // len(OPERATIONS)} sizes): {min(every):.2f} to {max(every):.2f}.\n"
    beside = [[record["ranks"], *(f"{of[b]['to_deepspeed']:.2f}" if "to_deepspeed" in of.get(b, {}) else "-" for b in SHOWN)]
              for record in records if (of := {row["bytes"]: row for row in record["rows"] if row["operation"] == "all_reduce"})]
    if any(cell != "-" for row in beside for cell in row[1:]):
        text += "\n" + markdown(["all_reduce: Chorus / DeepSpeed", *map(size, SHOWN)], beside)
    return text + "\n" + state(records, torchrun)


def training(records):
    rows = []
    for record in records:
        least = record.get("exposed_limit_ms")
        rows.append([record["place"], record["method"], *(f"{record[k + '_ms'] / 1e3:.2f}" for k in ("alone", "gloo", "chorus")),
                     f"{record['gloo_exposed_ms'] / 1e3:.2f}", f"{record['chorus_exposed_ms'] / 1e3:.2f}",
                     f"{record['exposed_ratio']:.2f}", "-" if least is None else f"{least / 1e3:.2f}",
                     *(f"{(record[k + '_cpu_ms'] - record['alone_cpu_ms']) / 1e3:.2f}" for k in ("gloo", "chorus"))])
    header = ["ranks are", "method", "alone, s", "Gloo, s", "Chorus, s", "exposed: Gloo", "Chorus", "ratio", "least by the wires",
              "CPU s of a rank beyond alone: Gloo", "Chorus"]
    return markdown(header, rows) + "\n" + state(records, lambda record: torchrun(record) if record["place"] == "loopback" else
                                                 f"chorus-perf cluster run {record['place']} -- python3")


def generate(records):
    rows = []
    for record in records:
        of = {row["backend"]: row for row in record["rows"]}
        for backend in ("chorus", "deepspeed", "gloo", "none"):
            if backend not in of:
                continue
            row, gloo = of[backend], of.get("gloo")
            name = {"chorus": "**Chorus**", "gloo": "Gloo", "deepspeed": "DeepSpeed's operation", "none": "no communication"}[backend]
            rows.append([record["ranks"], name, f"{row['tokens_per_s']:.1f}",
                         f"{row['tokens_per_s'] / gloo['tokens_per_s']:.2f}" if gloo else "-",
                         f"{100 * row['communication_share']:.0f} %" if "communication_share" in row else "-",
                         f"{row['step_ms']:.1f}", f"{row['cpu_ms']:.1f}"])
    return markdown(["ranks", "through", "tokens/s", "of Gloo's", "waits for communication", "ms a token", "ms of CPU a token"], rows) \
        + "\n" + state(records, lambda record: "python3")


def generate_short(machines):
    rows = []
    calls = machines[0][0]["rows"][-1]["collectives"]
    for record in (record for records in machines for record in records):
        of = {row["backend"]: row for row in record["rows"]}
        cells = [f"{of[b]['tokens_per_s']:.1f}" if b in of else "-" for b in ("gloo", "deepspeed", "chorus", "none")]
        rows.append([f"{processor([record])}, {record['machine']['cores']} cores", record["ranks"], *cells[:2], f"**{cells[2]}**", cells[3]])
    lead = ("Tokens per second of a model divided among ranks of one host ([examples/pytorch/generate.py](examples/pytorch/generate.py), "
            f"{calls} collectives a token; [docs/pytorch.md](docs/pytorch.md#tensor-parallel-inference)):\n\n")
    return lead + markdown(["machine", "ranks", "Gloo", "DeepSpeed's operation", "Chorus", "no communication"], rows)


def each(make):
    """One after the other, of the records of each machine."""
    return lambda machines: "\n".join(f"**{processor(records)}**\n\n{make(records)}" for records in machines)


TABLES = {"operations": (each(operations), "torch/operations-*-ranks.json"), "training": (each(training), "torch/training-*.json"),
          "generate": (each(generate), "torch/generate-*.json"), "generate-short": (generate_short, "torch/generate-*.json")}


def records_of(folder, pattern):
    records = []
    for path in sorted(folder.glob(pattern)):
        record = json.loads(path.read_text())
        parts = path.stem.split("-")
        record["place"] = "-".join(parts[2:])  # training-METHOD-PLACE
        records.append(record)
    return records


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    differ = []
    for document in DOCUMENTS:
        text = document.read_text()

        def table(found):
            make, pattern = TABLES[found["name"]]
            machines = [records for folder in sorted(RESULTS.iterdir()) if (records := records_of(folder, pattern))]
            return found["begin"] + make(machines) + found["end"] if machines else found[0]

        new = PLACE.sub(table, text)
        if new != text:
            differ.append(document.name)
            if not options.check:
                document.write_text(new)
    print("changed:" if differ else "nothing to change", *differ)
    return 1 if options.check and differ else 0


if __name__ == "__main__":
    sys.exit(main())
