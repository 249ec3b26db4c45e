#include "tests/base/memory_file_system.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status.h"

namespace cadre {
namespace {

std::string NameOf(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

absl::Status NoSuch(const std::string& path) {
  return absl::NotFoundError(absl::StrCat(path, ": No such file or directory"));
}

void WriteTo(std::string& bytes, uint64_t offset, absl::string_view text) {
  if (bytes.size() < offset + text.size()) bytes.resize(offset + text.size());
  std::copy(text.begin(), text.end(), bytes.begin() + static_cast<ptrdiff_t>(offset));
}

}  // namespace

class MemoryFileSystem::OpenFile : public File {
 public:
  OpenFile(MemoryFileSystem& files, std::string path, NodePtr node, uint64_t process, bool locks)
      : files_(files),
        path_(std::move(path)),
        node_(std::move(node)),
        process_(process),
        locks_(locks) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() override {
    // A file without a lock may outlive the file system.
    if (!locks_) return;
    absl::MutexLock lock(&files_.mutex_);
    if (process_ == files_.process_) node_->locked = false;
  }

  absl::Status WritePartsAt(uint64_t offset, std::span<const absl::string_view> parts) override {
    absl::MutexLock lock(&files_.mutex_);
    CADRE_RETURN_IF_ERROR(Check());
    CADRE_RETURN_IF_ERROR(files_.Change());
    std::string bytes = absl::StrJoin(parts, "");
    const uint64_t size = node_->bytes.size();
    const uint64_t growth = std::max(size, offset + bytes.size()) - size;
    // A full disk takes the bytes for which there is room.
    const uint64_t excess = growth - std::min(growth, files_.free_bytes_);
    bytes.resize(bytes.size() - std::min<uint64_t>(excess, bytes.size()));
    WriteTo(node_->bytes, offset, bytes);
    files_.free_bytes_ -= growth - excess;
    node_->unsynced.push_back({offset, std::move(bytes)});
    node_->last_write = files_.changes_;
    if (excess == 0) return absl::OkStatus();
    return StorageError(ENOSPC, "write", path_);
  }

  absl::StatusOr<size_t> ReadAt(uint64_t offset, std::span<char> first,
                                std::span<char> second) const override {
    absl::MutexLock lock(&files_.mutex_);
    CADRE_RETURN_IF_ERROR(Check());
    if (node_->read_error != 0) return StorageError(node_->read_error, "read", path_);
    size_t done = 0;
    for (const std::span<char> part : {first, second}) {
      const uint64_t at = std::min<uint64_t>(offset + done, node_->bytes.size());
      done += node_->bytes.copy(part.data(), part.size(), at);
    }
    return done;
  }

  absl::StatusOr<uint64_t> Size() const override {
    absl::MutexLock lock(&files_.mutex_);
    CADRE_RETURN_IF_ERROR(Check());
    return node_->bytes.size();
  }

  absl::Status Sync() override {
    absl::MutexLock lock(&files_.mutex_);
    CADRE_RETURN_IF_ERROR(Check());
    CADRE_RETURN_IF_ERROR(files_.Change());
    const auto& ignored = files_.ignore_syncs_of_;
    if (ignored.has_value() && absl::StrContains(path_, *ignored)) return absl::OkStatus();
    const std::vector<Node::Write> writes = std::exchange(node_->unsynced, {});
    if (std::exchange(files_.fail_next_sync_, false)) {
      return StorageError(EIO, "sync", path_);
    }
    for (const Node::Write& write : writes) {
      WriteTo(node_->durable_bytes, write.offset, write.bytes);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Check() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(files_.mutex_) {
    if (process_ != files_.process_) {
      return absl::UnavailableError(absl::StrCat(path_, ": the process has ended"));
    }
    return files_.CheckRunning();
  }

  MemoryFileSystem& files_;
  const std::string path_;
  const NodePtr node_;
  const uint64_t process_;
  const bool locks_;
};

MemoryFileSystem::MemoryFileSystem() : root_(std::make_shared<Node>(Node{.is_folder = true})) {}
MemoryFileSystem::~MemoryFileSystem() = default;

// ---- Faults

void MemoryFileSystem::EndProcess() {
  absl::MutexLock lock(&mutex_);
  ++process_;
  changes_left_.reset();
  const std::function<void(Node&)> unlock = [&](Node& node) {
    node.locked = false;
    for (const auto& [name, child] : node.names) unlock(*child);
  };
  unlock(*root_);
}

void MemoryFileSystem::CrashHost(const std::function<bool()>& survives) {
  EndProcess();
  absl::MutexLock lock(&mutex_);
  Revert(*root_, survives);
}

void MemoryFileSystem::Revert(Node& node, const std::function<bool()>& survives) {
  for (const Node::Write& write : std::exchange(node.unsynced, {})) {
    if (survives()) WriteTo(node.durable_bytes, write.offset, write.bytes);
  }
  node.bytes = node.durable_bytes;
  for (const NameChange& change : std::exchange(node.unsynced_names, {})) {
    if (!survives()) break;
    for (const auto& [name, child] : change) {
      if (child == nullptr) {
        node.durable_names.erase(name);
      } else {
        node.durable_names[name] = child;
      }
    }
  }
  node.names = node.durable_names;
  for (const auto& [name, child] : node.names) Revert(*child, survives);
}

void MemoryFileSystem::StopAfter(uint64_t changes) {
  absl::MutexLock lock(&mutex_);
  changes_left_ = changes;
}

void MemoryFileSystem::DoNotStop() {
  absl::MutexLock lock(&mutex_);
  changes_left_.reset();
}

bool MemoryFileSystem::stopped() const {
  absl::MutexLock lock(&mutex_);
  return changes_left_ == 0;
}

void MemoryFileSystem::SetFreeBytes(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  free_bytes_ = bytes;
}

void MemoryFileSystem::FailNextSync(bool fails) {
  absl::MutexLock lock(&mutex_);
  fail_next_sync_ = fails;
}

void MemoryFileSystem::IgnoreSyncs(const std::string& part) {
  absl::MutexLock lock(&mutex_);
  ignore_syncs_of_ = part;
}

void MemoryFileSystem::FlipBit(const std::string& path, uint64_t bit) {
  absl::MutexLock lock(&mutex_);
  const NodePtr node = Find(path);
  for (std::string* bytes : {&node->bytes, &node->durable_bytes}) {
    if (bit / 8 < bytes->size()) (*bytes)[bit / 8] ^= static_cast<char>(1 << bit % 8);
  }
}

void MemoryFileSystem::FailReads(const std::string& path, int error) {
  absl::MutexLock lock(&mutex_);
  Find(path)->read_error = error;
}

void MemoryFileSystem::SetReadOnly(bool read_only) {
  absl::MutexLock lock(&mutex_);
  read_only_ = read_only;
}

struct MemoryFileSystem::Image {
  NodePtr root;
};

MemoryFileSystem::NodePtr MemoryFileSystem::Clone(const Node& node) {
  auto copy = std::make_shared<Node>(Node{.is_folder = node.is_folder,
                                          .last_write = node.last_write,
                                          .bytes = node.durable_bytes,
                                          .durable_bytes = node.durable_bytes});
  for (const auto& [name, child] : node.durable_names) {
    copy->names[name] = copy->durable_names[name] = Clone(*child);
  }
  return copy;
}

std::shared_ptr<const MemoryFileSystem::Image> MemoryFileSystem::Copy() const {
  absl::MutexLock lock(&mutex_);
  return std::make_shared<Image>(Image{Clone(*root_)});
}

void MemoryFileSystem::RollBack(const Image& image) {
  absl::MutexLock lock(&mutex_);
  *root_ = *Clone(*image.root);
}

bool MemoryFileSystem::Exists(const std::string& path) const {
  absl::MutexLock lock(&mutex_);
  return Find(path) != nullptr;
}

// ---- Names

absl::Status MemoryFileSystem::CheckRunning() const {
  if (changes_left_ != 0) return absl::OkStatus();
  return absl::UnavailableError("the process was killed");
}

// The last permitted change takes place; the calls after it fail.
absl::Status MemoryFileSystem::Change() {
  CADRE_RETURN_IF_ERROR(CheckRunning());
  if (read_only_) return StorageError(EROFS, "change", "the file system");
  ++changes_;
  if (changes_left_.has_value()) --*changes_left_;
  return absl::OkStatus();
}

MemoryFileSystem::NodePtr MemoryFileSystem::Find(const std::string& path) const {
  NodePtr node = root_;
  for (const absl::string_view name : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    const auto child = node->names.find(std::string(name));
    if (child == node->names.end()) return nullptr;
    node = child->second;
  }
  return node;
}

absl::StatusOr<MemoryFileSystem::NodePtr> MemoryFileSystem::FolderOf(
    const std::string& path) const {
  NodePtr folder = Find(std::filesystem::path(path).parent_path().string());
  if (folder == nullptr || !folder->is_folder) return NoSuch(path);
  return folder;
}

void MemoryFileSystem::SetNames(Node& folder, NameChange change) {
  for (const auto& [name, node] : change) {
    if (node == nullptr) {
      folder.names.erase(name);
    } else {
      folder.names[name] = node;
    }
  }
  folder.unsynced_names.push_back(std::move(change));
}

absl::StatusOr<std::unique_ptr<File>> MemoryFileSystem::Create(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  CADRE_RETURN_IF_ERROR(Change());
  CADRE_ASSIGN_OR_RETURN(const NodePtr folder, FolderOf(path));
  if (free_bytes_ == 0) {
    return StorageError(ENOSPC, "create", path);
  }
  auto node = std::make_shared<Node>();
  node->last_write = changes_;
  SetNames(*folder, {{NameOf(path), node}});
  return std::make_unique<OpenFile>(*this, path, std::move(node), process_, /*locks=*/false);
}

absl::StatusOr<std::unique_ptr<File>> MemoryFileSystem::Open(const std::string& path,
                                                             Access /*access*/) {
  absl::MutexLock lock(&mutex_);
  CADRE_RETURN_IF_ERROR(CheckRunning());
  NodePtr node = Find(path);
  if (node == nullptr || node->is_folder) return NoSuch(path);
  return std::make_unique<OpenFile>(*this, path, std::move(node), process_, /*locks=*/false);
}

absl::StatusOr<std::unique_ptr<File>> MemoryFileSystem::Lock(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  CADRE_RETURN_IF_ERROR(Change());
  CADRE_ASSIGN_OR_RETURN(const NodePtr folder, FolderOf(path));
  NodePtr node = Find(path);
  if (node == nullptr) {
    node = std::make_shared<Node>();
    SetNames(*folder, {{NameOf(path), node}});
  }
  if (std::exchange(node->locked, true)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": is locked"));
  }
  return std::make_unique<OpenFile>(*this, path, std::move(node), process_, /*locks=*/true);
}

absl::Status MemoryFileSystem::Rename(const std::string& from, const std::string& to) {
  absl::MutexLock lock(&mutex_);
  CADRE_RETURN_IF_ERROR(Change());
  CADRE_ASSIGN_OR_RETURN(const NodePtr folder, FolderOf(from));
  CADRE_ASSIGN_OR_RETURN(const NodePtr target, FolderOf(to));
  NodePtr node = Find(from);
  if (node == nullptr) return NoSuch(from);
  if (folder != target) return absl::UnimplementedError("a rename between folders");
  SetNames(*folder, {{NameOf(from), nullptr}, {NameOf(to), std::move(node)}});
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::RemoveFile(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  CADRE_RETURN_IF_ERROR(Change());
  const NodePtr node = Find(path);
  if (node == nullptr || node->is_folder) return NoSuch(path);
  CADRE_ASSIGN_OR_RETURN(const NodePtr folder, FolderOf(path));
  SetNames(*folder, {{NameOf(path), nullptr}});
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::RemoveFolder(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  CADRE_RETURN_IF_ERROR(Change());
  if (Find(path) == nullptr) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(const NodePtr folder, FolderOf(path));
  SetNames(*folder, {{NameOf(path), nullptr}});
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::MakeFolder(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  CADRE_RETURN_IF_ERROR(Change());
  NodePtr node = root_;
  for (const absl::string_view name : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    const std::string key(name);
    if (!node->names.contains(key)) {
      SetNames(*node, {{key, std::make_shared<Node>(Node{.is_folder = true})}});
    }
    node = node->names[key];
    if (!node->is_folder) {
      return absl::FailedPreconditionError(absl::StrCat(path, ": Not a directory"));
    }
  }
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::SyncFolder(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  CADRE_RETURN_IF_ERROR(Change());
  const NodePtr node = Find(path);
  if (node == nullptr) return NoSuch(path);
  node->durable_names = node->names;
  node->unsynced_names.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<FolderEntry>> MemoryFileSystem::List(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  CADRE_RETURN_IF_ERROR(CheckRunning());
  const NodePtr node = Find(path);
  if (node == nullptr || !node->is_folder) return NoSuch(path);
  std::vector<FolderEntry> entries;
  for (const auto& [name, child] : node->names) entries.push_back({name, child->is_folder});
  return entries;
}

absl::StatusOr<int64_t> MemoryFileSystem::LastWrite(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  CADRE_RETURN_IF_ERROR(CheckRunning());
  const NodePtr node = Find(path);
  if (node == nullptr) return NoSuch(path);
  return node->last_write;
}

}  // namespace cadre
