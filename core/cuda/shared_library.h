// An NVIDIA library that is opened at run time, so that the program also starts without it.
#pragma once

#include <string>
#include <vector>

namespace mantissa::cuda {

class SharedLibrary {
 public:
  // Opens `name` ("libcudnn.so.9") for the life of the process. Searches the loader's own paths, then the lib64 and lib
  // folders of the paths in the environment `variables` and of /usr/local/cuda. Throws ConfigError with the loader's
  // reasons and `advice` if there is none.
  SharedLibrary(std::string name, const std::vector<const char*>& variables, const std::string& advice);

  // Throws ConfigError if the library lacks the symbol.
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
