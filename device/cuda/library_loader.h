// Loads the vendor's libraries (cuBLASLt, cuDNN, NCCL) while the program runs, so that one program
// starts on machines that have them and on machines that have no GPU at all.
//
//   CADRE_ASSIGN_OR_RETURN(LoadedLibrary library, LoadLibrary(CublasLtLibrary(), search));
//   CADRE_RETURN_IF_ERROR(library.Find("cublasLtCreate", api.create));
//
// A library is taken from the first place that has it, in this order: the directories of the
// search; lib/cadre-cuda beside the folder of the program; where the dynamic loader itself looks
// (LD_LIBRARY_PATH, ld.so.cache, what is loaded already); the usual folder of a toolkit.
//
// A loaded library stays loaded until the process ends, since the vendor's libraries keep threads
// and handlers of their own; a LoadedLibrary is a value that borrows it. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

struct LibrarySearch {
  // Looked into first, in this order. One that is no folder is an error when a library is loaded.
  std::vector<std::string> directories;
};

// A library by the names it is known under.
struct LibraryName {
  std::string title;                 // as messages call it: "cuDNN"
  std::vector<std::string> sonames;  // tried in this order: "libcudnn.so.9"
  std::string how_to_get;            // ends the message of one that is nowhere
  // Loaded before it where they are found: this library asks the dynamic loader for them by these
  // names, which knows nothing of our directories. Without them it does less, and says so itself.
  // The builtins of a dependency (NVRTC's) that lie beside it are loaded with it.
  std::vector<std::string> companions;
};

// Of the major versions that the program was compiled against.
LibraryName CublasLtLibrary();
LibraryName CudnnLibrary();
LibraryName NcclLibrary();

class LoadedLibrary {
 public:
  LoadedLibrary(std::string title, std::string path, void* handle);

  // Sets `function` to what the library calls `name`. Errors: FailedPrecondition, naming the
  // function, the library and its file: it is older than what the program was compiled against.
  template <typename Function>
  absl::Status Find(const char* name, Function*& function) const {
    void* symbol = nullptr;
    absl::Status found = FindSymbol(name, symbol);
    function = reinterpret_cast<Function*>(symbol);
    return found;
  }

  // The file that was loaded, as the dynamic loader knows it.
  const std::string& path() const { return path_; }

 private:
  absl::Status FindSymbol(const char* name, void*& symbol) const;

  std::string title_;
  std::string path_;
  void* handle_;
};

// Errors: FailedPrecondition, naming the library, every place looked at with the dynamic loader's
// reason, and how to get it; InvalidArgument for a directory of the search that is none.
absl::StatusOr<LoadedLibrary> LoadLibrary(const LibraryName& name, const LibrarySearch& search);

}  // namespace cadre
