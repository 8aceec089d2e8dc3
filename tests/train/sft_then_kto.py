"""SFT and then KTO in one launch: python -m sft_then_kto SFT.yaml KTO.yaml (see conftest.launched)."""

import sys

from eft.train import kto, sft

if __name__ == "__main__":
    sft.main([sys.argv[1]])
    kto.main([sys.argv[2]])
