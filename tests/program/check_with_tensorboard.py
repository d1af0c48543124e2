#!/usr/bin/env python3
"""Reads the event files of a run with TensorBoard's own code and compares them with its metrics.jsonl.

    python3 check_with_tensorboard.py RUN      needs the package tensorboard (made with 2.21)

Run by hand: the tests need no Python packages. Prints the tags found, and fails at the first difference.
"""
import json
import math
import pathlib
import struct
import sys

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import metadata as hparams_metadata

TAGS = {
    "loss": "train/loss", "grad_norm": "train/grad_norm", "lr": "train/learning_rate", "scale": "train/loss_scale",
    "tokens_per_second": "throughput/tokens_per_second", "ms": "throughput/step_ms",
    "mfu_of_gemm_peak": "throughput/mfu", "memory_bytes": "memory/bytes",
}


def single(value):
    """As fp32, in which event files keep scalars."""
    return struct.unpack("f", struct.pack("f", value))[0]


def check_series(name, found, expected):
    assert [event.step for event in found] == [step for step, _ in expected], f"{name}: the steps differ"
    for event, (step, value) in zip(found, expected):
        same = math.isnan(event.value) if value is None else event.value == single(value)
        assert same, f"{name}, step {step}: {event.value}, expected {value}"
    print(f"{name}: {len(found)} steps, as in metrics.jsonl")


def main(run):
    records = [json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines()]
    of_kind = lambda kind: [record for record in records if record["event"] == kind]
    everything = dict.fromkeys(event_accumulator.DEFAULT_SIZE_GUIDANCE, 0)
    events = event_accumulator.EventAccumulator(run, size_guidance=everything)
    events.Reload()
    tags = events.Tags()
    for field, tag in TAGS.items():
        expected = [(record["step"], record[field]) for record in of_kind("step")]
        if any(value is not None for _, value in expected):
            check_series(tag, events.Scalars(tag), expected)
    skipped = [(record["step"], 0.0 if record["applied"] else 1.0) for record in of_kind("step")]
    check_series("train/skipped", events.Scalars("train/skipped"), skipped)
    validation = [(record["step"], record["loss"]) for record in of_kind("validation")]
    if validation:
        check_series("validation/loss", events.Scalars("validation/loss"), validation)
    for tag in tags["histograms"]:
        for event in events.Histograms(tag):
            histogram = event.histogram_value
            assert histogram.num == sum(histogram.bucket), tag
            assert histogram.max - histogram.min == len(histogram.bucket), tag
    print(f"histograms: {len(tags['histograms'])} tags, such as {tags['histograms'][:1]}")
    samples = [record["text"] for record in of_kind("sample")]
    if samples:
        found = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("samples")]
        assert [text.replace("\n    ", "\n")[4:] for text in found] == samples, "samples differ"
        print(f"samples: {len(samples)}, as in metrics.jsonl")
    experiment, start, end = (
        hparams_metadata.parse_experiment_plugin_data, hparams_metadata.parse_session_start_info_plugin_data,
        hparams_metadata.parse_session_end_info_plugin_data)
    contents = events.PluginTagToContent("hparams")
    session = start(contents[hparams_metadata.SESSION_START_INFO_TAG])
    infos = experiment(contents[hparams_metadata.EXPERIMENT_TAG]).hparam_infos
    assert {info.name for info in infos} == set(session.hparams), "settings differ"
    print(f"hyperparameters: {len(infos)}, optimizer.lr = {session.hparams['optimizer.lr'].number_value}")
    if hparams_metadata.SESSION_END_INFO_TAG in contents:
        print(f"end: status {end(contents[hparams_metadata.SESSION_END_INFO_TAG]).status}")
    print("the event files say what metrics.jsonl says")


if __name__ == "__main__":
    main(*sys.argv[1:])
