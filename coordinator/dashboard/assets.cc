#include "coordinator/dashboard/assets.h"

namespace cadre {
namespace {

constexpr unsigned char kIndex[] = {
#include "coordinator/dashboard/index.html.inc"
};
constexpr unsigned char kStyle[] = {
#include "coordinator/dashboard/style.css.inc"
};
constexpr unsigned char kApp[] = {
#include "coordinator/dashboard/app.js.inc"
};
constexpr unsigned char kFormat[] = {
#include "coordinator/dashboard/format.js.inc"
};
constexpr unsigned char kPages[] = {
#include "coordinator/dashboard/pages.js.inc"
};
constexpr unsigned char kCharts[] = {
#include "coordinator/dashboard/charts.js.inc"
};
constexpr unsigned char kTimeline[] = {
#include "coordinator/dashboard/timeline.js.inc"
};
constexpr unsigned char kUplot[] = {
#include "coordinator/dashboard/uplot.js.inc"
};
constexpr unsigned char kUplotStyle[] = {
#include "coordinator/dashboard/uplot.css.inc"
};

template <size_t n>
absl::string_view Text(const unsigned char (&bytes)[n]) {
  return {reinterpret_cast<const char*>(bytes), n};
}

constexpr char kScript[] = "text/javascript; charset=utf-8";
constexpr char kCss[] = "text/css; charset=utf-8";

}  // namespace

const std::vector<Asset>& DashboardAssets() {
  static const auto* const assets = new std::vector<Asset>{
      {"/", Text(kIndex), "text/html; charset=utf-8"},
      {"/style.css", Text(kStyle), kCss},
      {"/app.js", Text(kApp), kScript},
      {"/format.js", Text(kFormat), kScript},
      {"/pages.js", Text(kPages), kScript},
      {"/charts.js", Text(kCharts), kScript},
      {"/timeline.js", Text(kTimeline), kScript},
      {"/uplot.js", Text(kUplot), kScript},
      {"/uplot.css", Text(kUplotStyle), kCss},
  };
  return *assets;
}

}  // namespace cadre
