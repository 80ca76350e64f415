"""Small texts of the kinds that fabric's readers take, written for the tests, and ways to spoil them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from nccl_bench.errors import DataError

FIELD_CASES = Path(os.environ.get("NCCL_BENCH_FIELD_CASES", Path(__file__).parents[2] / "shared"))
"""Real files from public repositories, which are not part of this one."""

needs_field_cases = pytest.mark.skipif(
    not (FIELD_CASES / "reference" / "topology").is_dir(), reason=f"no real topology files in {FIELD_CASES} (NCCL_BENCH_FIELD_CASES)"
)

XML = """<!-- made by hand -->
<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:f0:00.0" count="18" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x020700" vendor="0x15b3" device="0x1021" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1"/></nic>
      </pci>
    </pci>
    <pci busid="0000:20:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:21:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="0000:f0:00.0" count="18" tclass="0x068000"/></gpu>
      </pci>
    </pci>
  </cpu>
</system>
"""
GRAPH = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="12" speedintra="30" speedinter="25" typeintra="NVL" typeinter="PIX" samechannels="1">
    <channel><gpu dev="0"/><gpu dev="1"/></channel>
  </graph>
</graphs>
"""
MATRIX = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV12\tNV12\tNV12\tPXB\tSYS\t0-15\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tNV12\tNV12\tPXB\tSYS\t0-15\t0\t\tN/A\n"
    "GPU2\tNV12\tNV12\t X \tNV12\tSYS\tPXB\t16-31\t1\t\tN/A\n"
    "GPU3\tNV12\tNV12\tNV12\t X \tSYS\tPXB\t16-31\t1\t\tN/A\n"
    "NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS\t\t\t\n"
    "NIC1\tSYS\tSYS\tPXB\tPXB\tSYS\t X \t\t\t\n"
    "\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n"
)
LINKS = (
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0001)\n" + "".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(18))
    + "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-0002)\n" + "".join(f"\t Link {n}: {'<inactive>' if n == 4 else '26.562 GB/s'}\n" for n in range(18))
)  # fmt: skip
IBSTATUS = """Infiniband device 'mlx5_0' port 1 status:
\tstate:\t\t 4: ACTIVE
\tphys state:\t 5: LinkUp
\trate:\t\t 400 Gb/sec (4X NDR)
\tlink_layer:\t InfiniBand

Infiniband device 'mlx5_1' port 1 status:
\tstate:\t\t 1: DOWN
\tphys state:\t 3: Disabled
\trate:\t\t 10 Gb/sec (4X)
\tlink_layer:\t InfiniBand
"""
DEVINFO = """hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tvendor_id:\t\t\t0x02c9
\tboard_id:\t\t\tMT_0000000838
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tactive_width:\t\t4X (2)
\t\t\tactive_speed:\t\t100.0 Gbps (128)
\t\t\tlink_layer:\t\tEthernet
"""
ROCM = """============================ ROCm System Management Interface ============================
================================= Hops between two GPUs ==================================
       GPU0         GPU1         GPU2
GPU0   0            1            2
GPU1   1            0            1
GPU2   2            1            0
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         XGMI
GPU1   XGMI         0            XGMI
GPU2   XGMI         XGMI         0
================================== End of ROCm SMI Log ===================================
"""
LOG = """node-a:10:10 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
node-a:10:10 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
node-a:10:10 [0] NCCL INFO NET/IB: [0] mlx5_0:uverbs0:1/IB provider=Mlx5 speed=400000 context=0x1 pciPath=/sys ar=1
node-a:10:10 [0] NCCL INFO Using network IB
node-a:10:10 [0] NCCL INFO ncclCommInitRankConfig comm 0x2f rank 0 nranks 16 cudaDev 0 nvmlDev 3 busId 8d000 commId 0x3 - Init START
node-a:10:10 [0] NCCL INFO NVLS multicast support is available on dev 0
node-a:10:10 [0] NCCL INFO comm 0x2f rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
node-a:10:10 [0] NCCL INFO Channel 00/0 : 0[0] -> 7[7] via P2P/CUMEM
node-a:10:10 [0] NCCL INFO Channel 00/0 : 9[1] -> 0[0] [receive] via NET/IB/0(4)/GDRDMA
node-a:10:10 [0] NCCL INFO 16 coll channels, 0 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer
node-a:10:10 [0] NCCL INFO AllReduce: 1073741824 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..15}
node-a:10:10 [0] NCCL INFO AllGather: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
node-a:10:10 [0] NCCL INFO Broadcast: 4096 Bytes -> Algo 1 proto 2 time 12.3
"""


def spoiled(text: str) -> st.SearchStrategy[str]:
    """The text with pieces cut out, doubled, replaced by others or by anything at all."""
    new_text = st.one_of(st.text(max_size=20), st.sampled_from(["GPU0", "NV", "\t", "<", "9" * 30, "\x1b[4m"]))
    cut = st.tuples(st.integers(0, len(text)), st.integers(0, 80), new_text)

    def apply(cuts: list[tuple[int, int, str]]) -> str:
        result = text
        for start, length, new in cuts:
            result = result[:start] + new + result[start + length :]
        return result

    return st.lists(cut, max_size=6).map(apply)


def read_or_none(parse: Callable[[str], Any], text: str) -> Any:
    """What a parser makes of a text; None where it refuses it, which it must do with a reason."""
    try:
        return parse(text)
    except DataError as err:
        why = err.why
    assert why
    return None
