#include "member/default_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/identity.h"
#include "base/peer_text.h"

namespace cadre {

std::string DefaultWorkerName(absl::string_view certificate, absl::string_view host,
                              absl::string_view suffix) {
  const std::string end = absl::StrCat("-", suffix);
  if (certificate.size() + end.size() > kMaxName) return std::string(certificate);
  std::string lower = absl::AsciiStrToLower(host);
  for (char& c : lower) {
    if (!CheckName("", absl::string_view(&c, 1)).ok()) c = '-';
  }
  std::string name = certificate.empty() ? lower : absl::StrCat(certificate, "-", lower);
  name.resize(std::min(name.size(), kMaxName - end.size()));
  // There is no space for the host.
  if (name.size() > certificate.size() && name.back() == '-') name.pop_back();
  return absl::StrCat(name, end);
}

std::string DefaultWorkerName(const Credentials& credentials, absl::string_view suffix) {
  return DefaultWorkerName(credentials.secure() ? credentials.identity().name : "", HostName(),
                           suffix);
}

}  // namespace cadre
