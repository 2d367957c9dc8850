"""The benchmark's models as maitred models; `maitred serve overhead=maitred_model.py:Overhead` serves one."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import maitred  # noqa: E402
import models  # noqa: E402


class Overhead(maitred.Model):
    signature = maitred.Signature(inputs={"x": "float32[n, 4]"}, outputs={"y": "float32[n, 3]"})

    def load(self, path, device):
        self.model = models.load("overhead")

    def predict(self, batch):
        return {"y": self.model(batch["x"])}


class Slow(Overhead):
    def load(self, path, device):
        self.model = models.load("slow")


class Curve(Overhead):
    def load(self, path, device):
        self.model = models.load("curve")


class MiniLM(maitred.Model):
    signature = maitred.Signature(
        inputs={"input_ids": f"int64[n, {models.SEQ}]", "attention_mask": f"int64[n, {models.SEQ}]"},
        outputs={"embedding": f"float32[n, {models.DIM}]"},
    )

    def load(self, path, device):
        self.model = models.load("minilm")

    def predict(self, batch):
        return {"embedding": self.model(batch["input_ids"], batch["attention_mask"])}
