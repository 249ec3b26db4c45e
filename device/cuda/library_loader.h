// Loads the vendor's libraries (cuBLASLt, cuDNN, NCCL) at run time, so that the same executable
// starts both on hosts that have them and on hosts without a GPU.
//
//   CADRE_ASSIGN_OR_RETURN(LoadedLibrary library, LoadLibrary(CublasLtLibrary(), search));
//   CADRE_RETURN_IF_ERROR(library.Find("cublasLtCreate", api.create));
//
// A library is loaded from the first directory that has it, in this order: the directories of the
// search; ../lib/cadre-cuda, relative to the directory of the executable; the default search path
// of the dynamic loader (LD_LIBRARY_PATH, ld.so.cache, libraries that are loaded already);
// /usr/local/cuda/lib64.
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
  // Searched first, in this order. Loading fails if one of them is not a directory.
  std::vector<std::string> directories;
};

// Describes a library that can be loaded.
struct LibraryName {
  std::string title;       // for messages: "cuDNN"
  std::string soname;      // "libcudnn.so.9"
  std::string how_to_get;  // the end of the message if it is not found
  // Libraries that this one opens by these names through the dynamic loader, which does not search
  // our directories; so they are loaded first, if they are found. Without them the library works
  // with fewer functions and reports that itself. NVRTC's builtins are loaded together with NVRTC.
  std::vector<std::string> dependencies;
};

// The libraries, in the major versions that the program was compiled against.
LibraryName CublasLtLibrary();
LibraryName CudnnLibrary();
LibraryName NcclLibrary();

class LoadedLibrary {
 public:
  LoadedLibrary(std::string title, std::string path, void* handle);

  // Sets `function` to the library's function `name`. Errors: FailedPrecondition, naming the
  // function, the library and its file, if that file is older than the version that the program was
  // compiled against and lacks the function.
  template <typename Function>
  absl::Status Find(const char* name, Function*& function) const {
    void* symbol = nullptr;
    absl::Status found = FindSymbol(name, symbol);
    function = reinterpret_cast<Function*>(symbol);
    return found;
  }

  // The loaded file, as reported by the dynamic loader.
  const std::string& path() const { return path_; }

 private:
  absl::Status FindSymbol(const char* name, void*& symbol) const;

  std::string title_;
  std::string path_;
  void* handle_;
};

// Errors: FailedPrecondition, naming the library, every searched directory with the reason of the
// dynamic loader, and how to get the library; InvalidArgument if an entry of search.directories is
// not a directory.
absl::StatusOr<LoadedLibrary> LoadLibrary(const LibraryName& name, const LibrarySearch& search);

}  // namespace cadre
