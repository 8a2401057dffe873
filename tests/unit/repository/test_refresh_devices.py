"""What brings the data tables in `profiles/devices/` up to date."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from envbuilder.core import resources
from tools import refresh_devices as refresh

DEVICES = resources.profiles_dir() / "devices"
INTEL = """
#ifdef SUPPORT_DG2
NAMEDDEVICE(0x56A0, Dg2HwConfig, "Intel(R) Arc(TM) A770 Graphics")
DEVICE(0x56A3, Dg2HwConfig)
NAMEDDEVICE(0x56C0, Dg2HwConfig, "Intel(R) Data Center GPU Flex 170")
#endif
NAMEDDEVICE(0xE20B, BmgHwConfig, "Intel(R) Arc(TM) B580 Graphics")
NAMEDDEVICE(0x64A0, LnlHwConfig, "Intel(R) Arc(TM) Graphics")
"""
INTEL_TABLE = """\
id,family,torch_xpu,memory,name,source
56a0,Arc A (DG2),validated,dedicated,Arc A770,a file @1; a remark
56a3,Arc A (DG2),validated,dedicated,,a file @1; a remark
56c0,Flex (DG2),unlisted,dedicated,Flex 170,a file @1
64a0,Lunar Lake,validated,shared,Arc 140V,a file @1
e20b,Arc B (BMG),validated,dedicated,Arc B580,a file @1; a remark
"""
PCI = """\
#	Version: 2026.10.24
1002  Advanced Micro Devices
	1b81  GP104 [of another vendor]
10de  NVIDIA Corporation
	0040  NV40 [GeForce 6800 Ultra]
	10f0  GP104 High Definition Audio Controller
	1b78  GP102GL
	1b80  GP104 [GeForce GTX 1080]
		1043 8591  ROG STRIX [a board]
# a comment
	2c18  GB203M / GN22 [GeForce RTX 5090 Max-Q / Mobile]
	2331  GH100 [H100 PCIe]
	22a3  GH100 [H100 NVSwitch]
	29f1  GB10 GEN5 X4 PCIe host
	2e12  GB20B [GB10]
10df  Emulex Corporation
	2684  AD102 [of another vendor]
"""
X86 = """
#define IFM(_fam, _model)	VFM_MAKE(X86_VENDOR_INTEL, _fam, _model)
#define INTEL_ANY			IFM(X86_FAMILY_ANY, X86_MODEL_ANY)
#define INTEL_FAM5_START		IFM(5, 0x00) /* a mark */
#define INTEL_PENTIUM_PRO		IFM(6, 0x01)
#define INTEL_SKYLAKE_X			IFM(6, 0x55) /* Sky Lake */
#define INTEL_SAPPHIRERAPIDS_X		IFM(6, 0x8F) /* Golden Cove */
#define INTEL_ATOM_CRESTMONT_X		IFM(6, 0xAF) /* Sierra Forest */
#define INTEL_XEON_PHI_KNL		IFM(6, 0x57) /* Knights Landing */
#define INTEL_NOVALAKE_L		IFM(18, 0x03)
#define INTEL_FAM6_LAST			IFM(6, 0xFF)
"""
ARM = """
static const struct id_part arm_part[] = {
    { 0xd0c, "Neoverse-N1" },
    { -1, "unknown" },
};

static const struct id_part brcm_part[] = {
    { 0x0f, "Brahma-B15" },
    { -1, "unknown" },
};

static const struct hw_impl hw_implementer[] = {
    { 0x41, arm_part,     "ARM" },
    { 0x42, brcm_part,    "Broadcom" },
    { -1,   unknown_part, "unknown" },
};
"""
EMPTY = {name: ",".join(table.columns) + "\n" for name, table in refresh.TABLES.items()}


@pytest.fixture
def update(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Refreshes a table with a text; returns exit code, the table and what was printed."""

    def run(table: str, old: str, text: str | bytes, *options: str) -> tuple[int, str, str]:
        name = refresh.TABLES[table].file or table
        path = tmp_path / f"{name}.csv"
        source = tmp_path / "upstream"
        path.write_text(old, errors="surrogateescape")
        source.write_bytes(text.encode() if isinstance(text, str) else text)
        code = refresh.main([table, str(source), "--version", "2", *options], folder=tmp_path)
        printed = capsys.readouterr()
        return code, path.read_text(errors="surrogateescape"), printed.out + printed.err

    return run


RUNTIME = "intel/compute-runtime devices_base.inl @2"


@pytest.mark.parametrize(
    ("text", "old", "new", "told"),
    [
        (INTEL, "", "", "intel-gpus.csv: 0 added, 0 changed, 0 kept, 0 gone; written\n"),
        # A new one of a known family inherits,
        (
            INTEL + 'NAMEDDEVICE(0xE20C, BmgHwConfig, "Intel(R) Arc(TM) B570 Graphics")\n',
            "",
            f"e20c,Arc B (BMG),validated,dedicated,Arc B570,{RUNTIME}; a remark\n",
            "added    e20c: e20c, Arc B (BMG), validated, dedicated, Arc B570\n",
        ),
        # one of an unknown family is unlisted,
        (
            INTEL + "DEVICE(0xAA00, XyzHwConfig)\n",
            "",
            f"aa00,Xyz,unlisted,,,{RUNTIME}\n",
            "no memory",
        ),
        # and one of two families takes what they share.
        (
            INTEL + "DEVICE(0x56B0, Dg2HwConfig)\n",
            "",
            "56b0,Arc A (DG2) or Flex (DG2),unlisted,dedicated,,intel",
            "",
        ),
        (INTEL.replace("DEVICE(0x56A3, Dg2HwConfig)\n", ""), "", "", "gone     56a3: "),
        # A renamed one keeps what was written by hand. The runtime calls another just "Arc", which
        # says less than what was found out by hand.
        (
            INTEL.replace("B580", "B585"),
            "e20b,Arc B (BMG),validated,dedicated,Arc B580,a file @1; a remark\n",
            f"e20b,Arc B (BMG),validated,dedicated,Arc B585,{RUNTIME}; a remark\n",
            "changed  e20b: name 'Arc B580', upstream 'Arc B585'\n",
        ),
    ],
)
def test_a_table_of_gpus_is_refreshed(
    update: Any, text: str, old: str, new: str, told: str
) -> None:
    code, table, printed = update("intel-gpus", INTEL_TABLE, text, "--write")
    assert (code, told in printed, new in table) == (0, True, True)
    assert set(INTEL_TABLE.splitlines(keepends=True)) - {old} <= {*table.splitlines(keepends=True)}
    assert new or table == INTEL_TABLE


def test_gpus_of_pci_ids(update: Any) -> None:
    _, table, _ = update("nvidia-gpus", EMPTY["nvidia-gpus"], PCI, "--write")
    assert table.splitlines()[1:] == [
        "1b78,GP102,,pci.ids 2",
        "1b80,GP104,GeForce GTX 1080,pci.ids 2",
        "2331,GH100,H100 PCIe,pci.ids 2",
        "2c18,GB203,GeForce RTX 5090 Max-Q / Mobile,pci.ids 2",
        "2e12,GB20B,GB10,pci.ids 2",
    ]


def test_models_of_intel_family_h(update: Any) -> None:
    old = EMPTY["x86-cpus"] + (
        "AuthenticAMD,25,0,15,Zen 3,Linux\n"
        "GenuineIntel,6,85,85,Skylake-SP or Cascade Lake,Linux 1\n"
        "GenuineIntel,6,143,143,Golden Rapids,Linux 1\n"
    )
    code, table, told = update("x86-cpus", old, X86, "--write")
    source = "Linux 2 arch/x86/include/asm/intel-family.h"
    assert code == 0
    assert table.splitlines()[1:] == [
        "AuthenticAMD,25,0,15,Zen 3,Linux",
        "GenuineIntel,6,85,85,Skylake-SP or Cascade Lake,Linux 1",
        f"GenuineIntel,6,87,87,Knights Landing,{source}",
        "GenuineIntel,6,143,143,Golden Rapids,Linux 1",
        f"GenuineIntel,6,175,175,Crestmont (Sierra Forest),{source}",
        f"GenuineIntel,18,3,3,Nova Lake,{source}",
    ]
    assert "kept     GenuineIntel 6 143: generation 'Golden Rapids', upstream" in told
    assert "3 added, 0 changed, 1 kept, 0 gone" in told


@pytest.mark.parametrize(
    ("table", "text", "message"),
    [
        ("intel-gpus", "<html>Not found</html>", "no device is in it"),
        ("intel-gpus", "NEWDEVICE(0x56A0, Dg2HwConfig)\n", "line 1 is a device"),
        ("intel-gpus", "DEVICE(0x56A0, Dg2HwConfig)\n", "4 of the table's 5 rows are not in it"),
        ("intel-gpus", b"\x7fELF\0\0", "no text file"),
        ("nvidia-gpus", INTEL, "vendor 10de is not in it"),
        ("intel-gpus-kernel", "\tMACRO__(0x1912, ## X)\n", "line 1 is a device that cannot"),
        ("arm-cpus", X86, "no device is in it"),
        ("arm-cpus", ARM.replace("brcm_part[]", "other[]"), "list brcm_part of implementer 0x42"),
    ],
)
def test_a_file_that_is_something_else(
    update: Any, table: str, text: str | bytes, message: str
) -> None:
    old = INTEL_TABLE if table == "intel-gpus" else EMPTY[table]
    code, new, told = update(table, old, text, "--write")
    assert (code, new) == (2, old)
    assert message in told


KERNEL = """
#define INTEL_SKL_GT2_IDS(MACRO__, ...) \\
	MACRO__(0x1912, ## __VA_ARGS__), /* DT  GT2 */ \\
	MACRO__(0x191B, ## __VA_ARGS__)
#define INTEL_SKL_IDS(MACRO__, ...) \\
	INTEL_SKL_GT2_IDS(MACRO__, ## __VA_ARGS__)
#define INTEL_WCL_IDS(MACRO__, ...) \\
	MACRO__(0XFD80, ## __VA_ARGS__)
#define INTEL_BMG_IDS(MACRO__, ...) \\
	MACRO__(0xE20B, ## __VA_ARGS__), \\
	MACRO__(0xE20C, ## __VA_ARGS__)
"""


def test_gpus_of_the_kernel_are_at_best_unlisted(update: Any) -> None:
    old = INTEL_TABLE.splitlines(keepends=True)
    table = old[0] + next(line for line in old if line.startswith("e20b"))
    code, new, _ = update("intel-gpus-kernel", EMPTY["intel-gpus"], KERNEL)
    assert (code, new) == (0, EMPTY["intel-gpus"])
    (parsed, _) = refresh.merge(
        refresh.TABLES["intel-gpus-kernel"],
        list(csv.DictReader(table.splitlines())),
        refresh.parse_kernel(KERNEL),
        "6.99",
    )
    states = {row["id"]: (row["family"], row["torch_xpu"]) for row in parsed}
    assert states == {
        "1912": ("Skylake", "unsupported"),
        "191b": ("Skylake", "unsupported"),
        "e20b": ("Arc B (BMG)", "validated"),
        "e20c": ("Arc B (BMG)", "unlisted"),
        "fd80": ("Wildcat Lake", "unlisted"),
    }
    assert parsed[0]["source"] == "Linux 6.99 drm/intel/pciids.h"


def test_the_tables_in_the_repository_are_as_the_script_writes_them(update: Any) -> None:
    for name, table in refresh.TABLES.items():
        path = DEVICES / f"{table.file or name}.csv"
        text = path.read_text()
        old = refresh.read_table(path, table)
        found = [refresh.Found(values={column: row[column] for column in table.key}) for row in old]
        assert refresh.merge(table, old, found, "2") == (old, []), name
        assert text.splitlines()[0] == ",".join(table.columns)
