"""Models like a device's, which sleep: `curve` for 2 ms and 0.1 ms a row, `slow` for 5 ms whatever the batch.

`tiny` takes no time to speak of: nothing is waited for there.
"""

from __future__ import annotations

import time

import maitred


class Curve(maitred.Model):
    signature = maitred.Signature(inputs={"x": "float32[n, 4]"}, outputs={"y": "float32[n]"})

    def seconds(self, rows):
        return 0.002 + 0.0001 * rows

    def predict(self, batch):
        begun = time.monotonic()
        x = batch["x"]
        y = x.sum(axis=1)
        time.sleep(max(0.0, begun + self.seconds(len(x)) - time.monotonic() - 0.00006))  # what sleeping adds, about
        return {"y": y}


class Slow(Curve):
    def seconds(self, rows):
        return 0.005


class Tiny(Curve):
    def predict(self, batch):
        return {"y": batch["x"].sum(axis=1)}
