#include "coordinator/service/member_identity.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

bool HasRole(Role role, v1::Role stated) {
  return (role == Role::kWorker && stated == v1::ROLE_WORKER) ||
         (role == Role::kAggregator && stated == v1::ROLE_AGGREGATOR);
}

bool HasName(const Identity& certificate, absl::string_view stated) {
  if (!absl::ConsumePrefix(&stated, certificate.name)) return false;
  const bool replica = stated.size() > 1 && (stated[0] == '-' || stated[0] == '.');
  return stated.empty() || (replica && certificate.role == Role::kWorker);
}

}  // namespace

std::string IdentityError(const Identity& certificate, const v1::Hello& hello) {
  if (HasRole(certificate.role, hello.role()) && HasName(certificate, hello.name())) return "";
  return absl::StrCat("the certificate is that of ", RoleName(certificate.role), " ",
                      certificate.name, ", not of ", EnumText(hello.role()), " ",
                      absl::CHexEscape(hello.name().substr(0, 64)));
}

}  // namespace cadre
