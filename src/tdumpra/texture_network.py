"""An alias: configurations name this network as ``tdumpra.texture_network:texture_network``."""

from tdumpra.networks.texture_network import texture_network as texture_network
