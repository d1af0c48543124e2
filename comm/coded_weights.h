// Which weights can travel as codes of eight bits without a change of any product.
#pragma once

#include <optional>
#include <vector>

#include "core/autograd/parameter.h"
#include "core/autograd/precision.h"

namespace mantissa {

// By parameter index: the format in whose codes the weight is sent; nothing: it is sent as it is stored. Empty: none is
// sent so.
using CodedWeights = std::vector<std::optional<Format>>;

// Matrices of linear layers, kept in bf16, of which the forward product and that of the inputs' gradient read the same
// numbers: rounded to the same format of eight bits by delayed scaling, whose next scale all ranks know before they
// update. Not tables, which are read by rows, also where they are the head as well. Working dtypes are assigned. Empty
// if there is none.
CodedWeights coded_weights(const ParameterSet& parameters, const PrecisionPolicy& policy);

}  // namespace mantissa
