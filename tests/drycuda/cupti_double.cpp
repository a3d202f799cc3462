// SPDX-License-Identifier: Apache-2.0
#include "tests/drycuda/cupti_double.h"

void drycuda_set_observer(drycuda::Observer observer) { drycuda::Double::get().observer = observer; }

std::uint64_t drycuda_now_ns() { return drycuda::Double::get().now_ns; }
