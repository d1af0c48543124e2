// The argument structs of all kernels, for decorators and devices that handle all of them.
#pragma once

#include "core/kernels/activation/args.h"
#include "core/kernels/attention/args.h"
#include "core/kernels/elementwise/args.h"
#include "core/kernels/embedding/args.h"
#include "core/kernels/gemm/args.h"
#include "core/kernels/loss/args.h"
#include "core/kernels/norm/args.h"
#include "core/kernels/optimizer/args.h"
#include "core/kernels/probe/args.h"
#include "core/kernels/quantize/args.h"
#include "core/kernels/reduction/args.h"
