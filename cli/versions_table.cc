#include "cli/versions_table.h"

#include "absl/strings/str_cat.h"
#include "cli/table.h"

namespace cadre {

std::string VersionsTable(const google::protobuf::RepeatedPtrField<v1::RunStatus>& runs) {
  Table table({"RUN", "VERSION", "STEP", "DIGEST", "COPY OF"});
  for (const v1::RunStatus& run : runs) {
    for (const v1::KeptVersionStatus& kept : run.kept_versions()) {
      table.AddRow({run.run(), absl::StrCat(kept.version()), absl::StrCat(kept.step()),
                    kept.digest(), kept.has_restores() ? absl::StrCat(kept.restores()) : ""});
    }
  }
  return table.Text();
}

}  // namespace cadre
