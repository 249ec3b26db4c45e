#include "device/cuda/library_loader.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cadre {
namespace {

// Toolkit libraries have the toolkit's major version (such as 13) in their soname; cuDNN and NCCL
// have versions of their own.
std::string ToolkitSoname(absl::string_view library) {
  return absl::StrCat(library, ".so.", CUDART_VERSION / 1000);
}

// The folder that bench/gpu_bundle.sh and an installed tree put the vendor's libraries into.
std::string BesideProgram() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "";
  return (program.parent_path().parent_path() / "lib" / "cadre-cuda").string();
}

// Folders to search; an empty one stands for the dynamic loader's own rules.
std::vector<std::string> Places(const LibrarySearch& search) {
  std::vector<std::string> places = search.directories;
  if (std::string beside = BesideProgram(); !beside.empty()) places.push_back(std::move(beside));
  places.push_back("");
  places.push_back("/usr/local/cuda/lib64");
  return places;
}

absl::Status CheckDirectories(const LibrarySearch& search) {
  for (const std::string& directory : search.directories) {
    std::error_code error;
    if (!std::filesystem::is_directory(directory, error)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", directory, "' is no folder; CUDA libraries were to be looked for in it"));
    }
  }
  return absl::OkStatus();
}

// Opens `soname` in `place`; null with the dynamic loader's reason in `why`. A file that does not
// exist is not tried, which keeps the message short.
void* Open(const std::string& place, const std::string& soname, std::string& why) {
  std::string file = soname;
  if (!place.empty()) {
    std::error_code error;
    file = absl::StrCat(place, "/", soname);
    if (!std::filesystem::exists(file, error)) {
      why = absl::StrCat(file, ": no such file");
      return nullptr;
    }
  }
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    why = reason == nullptr ? absl::StrCat(file, ": the dynamic loader gave no reason") : reason;
    if (place.empty()) why = absl::StrCat("the dynamic loader's own places: ", why);
  }
  return handle;
}

// The file of a handle; the requested name if the dynamic loader does not provide it.
std::string FileOf(void* handle, const std::string& requested) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr ||
      map->l_name[0] == '\0') {
    return requested;
  }
  return map->l_name;
}

// NVRTC opens its builtins, libnvrtc-builtins.so.13.0 for libnvrtc.so.13, by their file name when
// it compiles, and does not search its own folder; so they are loaded in advance.
void LoadBuiltins(const std::string& library) {
  const std::filesystem::path file(library);
  const std::string name = file.filename().string();
  const std::string begin = absl::StrCat(name.substr(0, name.find(".so")), "-builtins.so.");
  std::error_code error;
  std::filesystem::directory_iterator files(file.parent_path(), error);
  for (; !error && files != std::filesystem::directory_iterator(); files.increment(error)) {
    const std::filesystem::path& beside = files->path();
    if (absl::StartsWith(beside.filename().string(), begin)) {
      dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
  }
}

// Loads each dependency that is found, and keeps it loaded.
void LoadDependencies(const LibraryName& name, const std::vector<std::string>& places) {
  std::string ignored;
  for (const std::string& dependency : name.dependencies) {
    for (const std::string& place : places) {
      void* const handle = Open(place, dependency, ignored);
      if (handle == nullptr) continue;
      LoadBuiltins(FileOf(handle, dependency));
      break;
    }
  }
}

}  // namespace

LibraryName CublasLtLibrary() {
  return {.title = "cuBLASLt",
          .soname = ToolkitSoname("libcublasLt"),
          .how_to_get = "it comes with the CUDA toolkit and with the Python package nvidia-cublas",
          .dependencies = {}};
}

LibraryName CudnnLibrary() {
  return {.title = "cuDNN",
          .soname = "libcudnn.so.9",
          .how_to_get =
              "it comes with NVIDIA's package cudnn9 and with the Python package "
              "nvidia-cudnn-cu13 (nvidia-cudnn-cu12 for CUDA 12)",
          // cuDNN's engines use cuBLASLt for products, and compile kernels while the program runs.
          .dependencies = {ToolkitSoname("libcublasLt"), ToolkitSoname("libnvrtc")}};
}

LibraryName NcclLibrary() {
  return {.title = "NCCL",
          .soname = "libnccl.so.2",
          .how_to_get =
              "it comes with NVIDIA's package libnccl2 and with the Python package "
              "nvidia-nccl-cu13 (nvidia-nccl-cu12 for CUDA 12)",
          .dependencies = {}};
}

LoadedLibrary::LoadedLibrary(std::string title, std::string path, void* handle)
    : title_(std::move(title)), path_(std::move(path)), handle_(handle) {}

absl::Status LoadedLibrary::FindSymbol(const char* name, void*& symbol) const {
  symbol = dlsym(handle_, name);
  if (symbol != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(title_, " (", path_, ") has no function ", name,
                   ": it is older than the one this program was compiled against"));
}

absl::StatusOr<LoadedLibrary> LoadLibrary(const LibraryName& name, const LibrarySearch& search) {
  if (absl::Status checked = CheckDirectories(search); !checked.ok()) return checked;
  const std::vector<std::string> places = Places(search);
  LoadDependencies(name, places);
  std::vector<std::string> reasons;
  for (const std::string& place : places) {
    std::string why;
    if (void* handle = Open(place, name.soname, why); handle != nullptr) {
      return LoadedLibrary(name.title, FileOf(handle, name.soname), handle);
    }
    reasons.push_back(std::move(why));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      name.title, " (", name.soname, ") was not found; looked at: ", absl::StrJoin(reasons, "; "),
      ". ", name.how_to_get, "; --cuda_libraries names folders to look into"));
}

}  // namespace cadre
