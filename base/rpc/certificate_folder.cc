// A folder is written under another name and then moved to its own: by a rename that fails if the
// folder exists, or by an exchange of the two.
#include "base/rpc/certificate_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/certificate.h"
#include "base/file.h"
#include "base/status.h"

namespace cadre {
namespace {

constexpr absl::string_view kScheme = "spiffe://";

absl::Status WritePrivately(const std::string& path, absl::string_view bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoStatus(errno, "create", path);
  const absl::Cleanup closing = [fd] { close(fd); };
  if (write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()) ||
      fsync(fd) != 0) {
    return ErrnoStatus(errno, "write", path);
  }
  return absl::OkStatus();
}

// A folder with anything else than `files` is not one that WriteFolder has written.
absl::Status CheckReplaceable(const std::string& path,
                              const std::map<std::string, std::string>& files) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (files.contains(entry.path().filename())) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(entry.path().string(), " would be deleted; ", path, " is not replaced"));
  }
  if (!error) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", error.message()));
}

absl::Status WriteFolder(const std::string& folder, const std::map<std::string, std::string>& files,
                         bool replace) {
  const std::string path(absl::StripSuffix(folder, "/"));
  struct stat unused;
  const bool exists = lstat(path.c_str(), &unused) == 0;
  if (exists && !replace) {
    return absl::AlreadyExistsError(absl::StrCat(path, " exists; it is only replaced on request"));
  }
  if (exists) CADRE_RETURN_IF_ERROR(CheckReplaceable(path, files));
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) CADRE_RETURN_IF_ERROR(MakeFolder(parent));
  std::string draft = path + ".XXXXXX";
  if (mkdtemp(draft.data()) == nullptr) return ErrnoStatus(errno, "create", draft);
  const absl::Cleanup removal = [&draft] {
    std::error_code ignored;
    std::filesystem::remove_all(draft, ignored);
  };
  for (const auto& [name, bytes] : files) {
    CADRE_RETURN_IF_ERROR(WritePrivately(absl::StrCat(draft, "/", name), bytes));
  }
  const unsigned flags = exists ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (renameat2(AT_FDCWD, draft.c_str(), AT_FDCWD, path.c_str(), flags) != 0) {
    return ErrnoStatus(errno, "create", path);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteAuthority(const std::string& folder, const AuthorityOptions& options) {
  // The identity of a member shows whether the trust domain is valid.
  const std::string uri = absl::StrCat(kScheme, options.trust_domain);
  CADRE_RETURN_IF_ERROR(ParseSpiffeId(uri + "/cadre/viewer/x").status());
  CADRE_ASSIGN_OR_RETURN(const KeyPair authority,
                         MakeAuthority({.common_name = "Cadre development authority",
                                        .uri = uri,
                                        .begin = options.validity.begin,
                                        .end = options.validity.end}));
  return WriteFolder(folder, {{"ca.crt", authority.certificate}, {"ca.key", authority.key}},
                     options.replace);
}

absl::Status WriteCredentials(const std::string& authority, const CredentialsOptions& options,
                              const std::string& folder) {
  const std::string path = authority + "/ca.crt";
  KeyPair signer;
  CADRE_ASSIGN_OR_RETURN(signer.certificate, ReadFile(path));
  CADRE_ASSIGN_OR_RETURN(signer.key, ReadFile(authority + "/ca.key"));
  CADRE_ASSIGN_OR_RETURN(const CertificateInfo info, ReadCertificate(signer.certificate, path));
  if (info.uris.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the certificate names no trust domain; see 'cadre certs init'"));
  }
  const std::string uri =
      absl::StrCat(info.uris[0], "/cadre/", RoleName(options.role), "/", options.name);
  CADRE_RETURN_IF_ERROR(ParseSpiffeId(uri).status());
  CADRE_ASSIGN_OR_RETURN(const KeyPair pair,
                         IssueCertificate(signer, {.common_name = options.name,
                                                   .uri = uri,
                                                   .dns = options.dns,
                                                   .ips = options.ips,
                                                   .begin = options.validity.begin,
                                                   .end = options.validity.end}));
  return WriteFolder(
      folder,
      {{"ca.crt", signer.certificate}, {"tls.crt", pair.certificate}, {"tls.key", pair.key}},
      options.replace);
}

}  // namespace cadre
