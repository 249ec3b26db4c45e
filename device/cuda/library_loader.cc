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
std::string BundledLibraryFolder() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "";
  return (program.parent_path().parent_path() / "lib" / "cadre-cuda").string();
}

// Folders to search. An empty one stands for the default search path of the dynamic loader.
std::vector<std::string> SearchFolders(const LibrarySearch& search) {
  std::vector<std::string> folders = search.directories;
  if (std::string bundled = BundledLibraryFolder(); !bundled.empty()) {
    folders.push_back(std::move(bundled));
  }
  folders.push_back("");
  folders.push_back("/usr/local/cuda/lib64");
  return folders;
}

absl::Status CheckDirectories(const LibrarySearch& search) {
  for (const std::string& directory : search.directories) {
    std::error_code error;
    if (!std::filesystem::is_directory(directory, error)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", directory, "' is not a directory, so it cannot be searched for CUDA libraries"));
    }
  }
  return absl::OkStatus();
}

// Opens `soname` in `folder`. Returns null, with the reason of the dynamic loader in `why`, if that
// fails. A file that does not exist is not opened, which keeps the message short.
void* Open(const std::string& folder, const std::string& soname, std::string& why) {
  std::string file = soname;
  if (!folder.empty()) {
    std::error_code error;
    file = absl::StrCat(folder, "/", soname);
    if (!std::filesystem::exists(file, error)) {
      why = absl::StrCat(file, ": no such file");
      return nullptr;
    }
  }
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    why = reason == nullptr ? absl::StrCat(file, ": the dynamic loader gave no reason") : reason;
    if (folder.empty()) why = absl::StrCat("the dynamic loader's own places: ", why);
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
void LoadDependencies(const LibraryName& name, const std::vector<std::string>& folders) {
  std::string ignored;
  for (const std::string& dependency : name.dependencies) {
    for (const std::string& folder : folders) {
      void* const handle = Open(folder, dependency, ignored);
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
          // cuDNN's engines use cuBLASLt for matrix products, and compile kernels while the program
          // runs.
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
  const std::vector<std::string> folders = SearchFolders(search);
  LoadDependencies(name, folders);
  std::vector<std::string> reasons;
  for (const std::string& folder : folders) {
    std::string why;
    if (void* handle = Open(folder, name.soname, why); handle != nullptr) {
      return LoadedLibrary(name.title, FileOf(handle, name.soname), handle);
    }
    reasons.push_back(std::move(why));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      name.title, " (", name.soname, ") was not found; tried: ", absl::StrJoin(reasons, "; "), ". ",
      name.how_to_get, "; --cuda_libraries lists further directories to search"));
}

}  // namespace cadre
