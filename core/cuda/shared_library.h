// A library of NVIDIA's that is opened when the program runs, so that it also starts where there is none.
#pragma once

#include <string>
#include <vector>

namespace mantissa::cuda {

class SharedLibrary {
 public:
  // Opens `name` ("libcudnn.so.9") for the life of the process: where the loader looks, then in the lib64 and lib
  // folders of what the variables name and of /usr/local/cuda. ConfigError with the loader's reasons and `advice` if
  // there is none.
  SharedLibrary(std::string name, const std::vector<const char*>& variables, const std::string& advice);

  // ConfigError if the library lacks the symbol.
  template <typename Function>
  void resolve(const char* symbol, Function& function) const {
    function = reinterpret_cast<Function>(find(symbol));
  }
  const std::string& name() const { return name_; }

 private:
  void* find(const char* symbol) const;

  std::string name_;
  void* handle_;
};

}  // namespace mantissa::cuda
