// SPDX-License-Identifier: Apache-2.0
#include "solver/cyclic.h"
