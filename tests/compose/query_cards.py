"""Print the CardRisk features of some cards as one JSON list: `query_cards.py URL TOKEN CARD...`.

Runs with the Python of the client's environment.
"""

import sys

import pandas as pd
from fennel.client import Client

from examples.fraud.definitions import CardRisk

url, token, *cards = sys.argv[1:]
wanted = pd.DataFrame({"CardRisk.cc_num": [int(card) for card in cards]})
found = Client(url, token).query(
    inputs=[CardRisk.cc_num], outputs=[CardRisk], input_dataframe=wanted
)
found.columns = [name.split(".", 1)[1] for name in found.columns]
sys.stdout.write(found.to_json(orient="records"))
