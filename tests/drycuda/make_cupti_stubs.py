#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what the dry CUPTI takes from CUPTI's headers: names, and stubs.

  make_cupti_stubs.py INCLUDE NAMES.H STUBS.CPP

NAMES.H has the names of API calls and the texts of results. STUBS.CPP defines, weakly, each function that a header in
INCLUDE declares: what the dry CUPTI defines itself takes its place, and the rest says that it is not supported.
"""
import re
import sys
from pathlib import Path

# A comment, and the value that it describes.
RESULT = re.compile(r"/\*\*((?:(?!\*/).)*)\*/\s*(CUPTI_\w+)\s*=\s*(\d+)\s*,", re.DOTALL)


def calls(include, api):
    header = (include / f"cupti_{api}_cbid.h").read_text()
    prefix = f"CUPTI_{api.upper()}_TRACE_CBID_"
    return [(int(number), name) for name, number in re.findall(rf"{prefix}(\w+)\s*=\s*(\d+)", header)]


def results(include):
    header = (include / "cupti_result.h").read_text()
    return [(int(number), name, " ".join(text.replace("*", " ").split()))
            for text, name, number in RESULT.findall(header)]


def table(name, entries):
    rows = "".join(f'    {{{number}, "{text}"}},\n' for number, text in entries)
    return f"inline constexpr NumberedName {name}[] = {{\n{rows}}};\n"


def write_names(include, path):
    found = results(include)
    path.write_text(
        "#pragma once\n\n#include <cstdint>\n\nnamespace drycuda::cupti {\n\n"
        "struct NumberedName {\n  std::uint32_t number;\n  const char* text;\n};\n\n"
        + table("kRuntimeCalls", calls(include, "runtime")) + table("kDriverCalls", calls(include, "driver"))
        + table("kResults", [(number, name) for number, name, _ in found])
        + table("kMessages", [(number, text) for number, _, text in found])
        + "\n}  // namespace drycuda::cupti\n")


def write_stubs(include, path):
    headers = "".join(header.read_text() for header in include.glob("cupti*.h"))
    names = sorted(set(re.findall(r"CUptiResult\s+CUPTIAPI\s+(cupti\w+)", headers)))
    stubs = "".join(f'extern "C" __attribute__((weak)) int {name}() {{ return kNotSupported; }}\n' for name in names)
    path.write_text(f"namespace {{\nconstexpr int kNotSupported = 27;  // CUPTI_ERROR_NOT_SUPPORTED\n}}\n\n{stubs}")


def main():
    include, names, stubs = map(Path, sys.argv[1:])
    write_names(include, names)
    write_stubs(include, stubs)


if __name__ == "__main__":
    main()
