// Settings of precision overrides: ops and what they may be set to.
#pragma once

#include <optional>

#include "core/io/config_fields.h"
#include "tools/config/config.h"

namespace mantissa {

// "auto" for nothing, else a rule or a dtype.
ScalarField optional_op_setting_field(std::optional<OpSetting>& target);
ScalarField op_setting_field(OpSetting& target);
// "any" for nothing.
ScalarField optional_op_field(std::optional<Op>& target);
ScalarField op_field(Op& target);

}  // namespace mantissa
