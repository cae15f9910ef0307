"""tensorboardX: scalars, histograms, text and tensors; read back frame by frame, true CRCs."""

import glob
import os
import time

import numpy as np
from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event

from common import array, check, crc32c, main, masked, tfrecords

STEPS = 50


def values(step):
    return float(array(f"loss{step}", (1,), "u4")[0]), array(f"weights{step}", (200,), "i2")


def write(directory):
    logs = os.path.join(directory, "run1")
    writer = SummaryWriter(logdir=logs, flush_secs=1)
    for step in range(STEPS):
        loss, weights = values(step)
        writer.add_scalar("train/loss", loss, step)
        writer.add_scalars("losses", {"a": loss, "b": -loss}, step)
        writer.add_histogram("weights", weights.astype("f4"), step)
        if step % 10 == 0:
            writer.add_text("note", f"step {step}", step)
            # What was flushed can be read while the writer goes on (its queue may lag behind).
            path = glob.glob(os.path.join(logs, "events.out.tfevents.*"))[0]
            while step not in (found := scalars(path, partial=True).get("train/loss", {})):
                writer.flush()
                time.sleep(0.01)
            check(found[step] == np.float32(loss), "loss at", step)
    writer.close()
    verify(directory)


def scalars(path, partial=False):
    """Every simple value of an event file, {tag: {step: value}}; checks each frame's CRC."""
    found = {}
    for payload, footer in tfrecords(path, partial):
        check(footer == masked(crc32c(payload)), path, "has a payload with a bad checksum")
        event = Event.FromString(payload)
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                found.setdefault(value.tag, {})[event.step] = np.float32(value.simple_value)
            elif value.WhichOneof("value") == "histo":
                found.setdefault(value.tag, {})[event.step] = value.histo.num
            else:
                found.setdefault(value.tag, {})[event.step] = True
    return found


def verify(directory):
    files = glob.glob(os.path.join(directory, "run1", "events.out.tfevents.*"))
    check(len(files) == 1, "event files:", files)
    found = scalars(files[0])
    for step in range(STEPS):
        loss, weights = values(step)
        check(found["train/loss"][step] == np.float32(loss), "train/loss at", step)
        check(found["weights"][step] == len(weights), "weights at", step)
    check(sorted(found["train/loss"]) == list(range(STEPS)), "steps of train/loss")
    check(sorted(found["note/text_summary"]) == list(range(0, STEPS, 10)), "steps of note")
    for name, sign in (("a", 1), ("b", -1)):
        (path,) = glob.glob(os.path.join(directory, "run1", "losses", name, "events.*"))
        for step, value in scalars(path)["losses"].items():
            check(value == np.float32(sign * values(step)[0]), "losses", name, "at", step)


if __name__ == "__main__":
    main(write, verify)
