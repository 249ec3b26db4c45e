// `cadre certs`: a certificate authority for development, in a folder. Production clusters use
// their own authority; what Cadre needs of it is in the text of the verb (cli/verbs.cc).
#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/rpc/certificate_folder.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/commands.h"

namespace cadre {
namespace {

std::vector<std::string> ListOf(const CommandLine& line, absl::string_view flag) {
  return absl::StrSplit(line.Get<std::string>(flag).value_or(""), ',', absl::SkipEmpty());
}

absl::Status CheckNumber(const CommandLine& line, size_t arguments, absl::string_view usage) {
  if (line.arguments().size() == arguments) return absl::OkStatus();
  return UsageError(absl::StrCat("expected 'cadre certs ", usage, "'"));
}

absl::Status ExpectFlags(const CommandLine& line, std::initializer_list<absl::string_view> flags,
                         absl::string_view action) {
  for (const std::string& given : line.given()) {
    if (std::find(flags.begin(), flags.end(), given) == flags.end()) {
      return UsageError(absl::StrCat("--", given, " is not valid with 'cadre certs ", action, "'"));
    }
  }
  return absl::OkStatus();
}

// Names and addresses are those of the command line. The advice of the file system layer is to ask
// for a replacement; here that is a flag.
absl::Status NameFlag(const absl::Status& status) {
  if (absl::IsInvalidArgument(status)) return UsageError(status.message());
  if (!absl::IsAlreadyExists(status)) return status;
  return absl::AlreadyExistsError(absl::StrCat(status.message(), ": --replace"));
}

}  // namespace

absl::StatusOr<int> ManageCertificates(const Invocation& in) {
  const CommandLine& line = in.line;
  const std::string authority = line.Value<std::string>("ca");
  const bool replace = line.On("replace");
  std::string folder = authority;
  const uint32_t days = line.Value<uint32_t>("days");
  Validity validity;
  validity.end = absl::Now() + absl::Hours(24) * days;
  if (line.argument() == "init") {
    CADRE_RETURN_IF_ERROR(CheckNumber(line, 1, "init"));
    CADRE_RETURN_IF_ERROR(ExpectFlags(line, {"ca", "days", "replace", "trust-domain"}, "init"));
    CADRE_RETURN_IF_ERROR(
        NameFlag(WriteAuthority(folder, {.trust_domain = line.Value<std::string>("trust-domain"),
                                         .validity = validity,
                                         .replace = replace})));
  } else if (line.argument() == "issue") {
    CADRE_RETURN_IF_ERROR(CheckNumber(line, 3, "issue ROLE NAME"));
    CADRE_RETURN_IF_ERROR(
        ExpectFlags(line, {"ca", "days", "replace", "dns", "ip", "out"}, "issue"));
    const std::optional<Role> role = ParseRole(line.arguments()[1]);
    if (!role) {
      return UsageError(
          absl::StrCat("unknown role '", line.arguments()[1],
                       "'; the roles are operator, viewer, worker, aggregator and coordinator"));
    }
    const std::string& name = line.arguments()[2];
    folder = line.Get<std::string>("out").value_or(name);
    CADRE_RETURN_IF_ERROR(NameFlag(WriteCredentials(authority,
                                                    {.role = *role,
                                                     .name = name,
                                                     .dns = ListOf(line, "dns"),
                                                     .ips = ListOf(line, "ip"),
                                                     .validity = validity,
                                                     .replace = replace},
                                                    folder)));
  } else {
    return UsageError(
        absl::StrCat("unknown action '", line.argument(), "'; expected init or issue"));
  }
  if (!in.global.quiet) {
    in.console.err << "wrote " << folder << ", valid until "
                   << absl::FormatTime("%Y-%m-%d", validity.end, absl::UTCTimeZone()) << std::endl;
  }
  return kExitOk;
}

}  // namespace cadre
