"""Other planners on the runs that this one is measured on: an adapter for each."""

from tools.peers import calculon, llm_analysis, simumax
from tools.peers.common import Peer

PEERS: dict[str, Peer] = {
    "calculon": calculon.PEER,
    "llm_analysis": llm_analysis.PEER,
    "simumax": simumax.PEER,
}
