// A test with a stream of the emulated GPU, without faults again at its end.
#pragma once

#include <gtest/gtest.h>

#include "core/cuda/device/device.h"
#include "core/cuda/emulation/faults.h"

namespace mantissa::cuda {

class EmulatedStream : public ::testing::Test {
 protected:
  EmulatedStream() : stream_(create_stream()) {}
  ~EmulatedStream() override {
    emulation::set_faults({});
    destroy_stream(stream_);
  }

  // Launches a kernel and waits for it.
  template <typename... Parameters, typename... Arguments>
  void run(void (*kernel)(Parameters...), const LaunchShape& shape, Arguments... arguments) {
    launch(kernel, shape, stream_, arguments...);
    synchronize(stream_);
  }

  StreamHandle stream_;
};

}  // namespace mantissa::cuda
