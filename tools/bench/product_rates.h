// How fast the device multiplies square matrices: bf16, and codes of 8 bits where it has units for them.
#pragma once

#include "tools/config/config.h"

namespace mantissa {

// Prints a line for each kind of operands, "products_bf16: 256 1.1e+13 0.011 512 ...": sizes, FLOP/s, and their share
// of the device's peak, 0 where that is not known. The device is the configuration's.
void print_product_rates(const Config& config);

}  // namespace mantissa
