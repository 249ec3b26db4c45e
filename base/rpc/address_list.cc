#include "base/rpc/address_list.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace cadre {

absl::Status CheckAddresses(absl::string_view what, absl::string_view list) {
  for (const absl::string_view address : absl::StrSplit(list, ',')) {
    if (!absl::StripAsciiWhitespace(address).empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(what, " '", list, "' has an empty address; it is host:port, or several of ",
                     "them separated by commas"));
  }
  return absl::OkStatus();
}

std::vector<std::string> SplitAddresses(absl::string_view list) {
  std::vector<std::string> addresses = absl::StrSplit(list, ',', absl::SkipWhitespace());
  for (std::string& address : addresses) absl::StripAsciiWhitespace(&address);
  if (addresses.empty()) addresses.emplace_back(list);
  return addresses;
}

}  // namespace cadre
