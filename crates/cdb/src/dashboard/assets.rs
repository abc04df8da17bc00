//! The pages, as they are sent: no build step, nothing from elsewhere.

/// A file of the pages: path, type, text.
type Asset = (&'static str, &'static str, &'static str);

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Every file. Paths that are none of these and not of the API are pages, which the script tells apart.
const ASSETS: [Asset; 14] = [
    ("/app.css", "text/css; charset=utf-8", include_str!("assets/app.css")),
    ("/icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
    ("/js/app.js", SCRIPT, include_str!("assets/js/app.js")),
    ("/js/ui.js", SCRIPT, include_str!("assets/js/ui.js")),
    ("/js/net.js", SCRIPT, include_str!("assets/js/net.js")),
    ("/js/actions.js", SCRIPT, include_str!("assets/js/actions.js")),
    ("/js/timeline.js", SCRIPT, include_str!("assets/js/timeline.js")),
    ("/js/overview.js", SCRIPT, include_str!("assets/js/overview.js")),
    ("/js/instances.js", SCRIPT, include_str!("assets/js/instances.js")),
    ("/js/instance.js", SCRIPT, include_str!("assets/js/instance.js")),
    ("/js/lists.js", SCRIPT, include_str!("assets/js/lists.js")),
    ("/js/care.js", SCRIPT, include_str!("assets/js/care.js")),
    ("/js/explorer.js", SCRIPT, include_str!("assets/js/explorer.js")),
    ("/js/emulator.js", SCRIPT, include_str!("assets/js/emulator.js")),
];

const PAGE: Asset = ("/", "text/html; charset=utf-8", include_str!("assets/index.html"));

/// The file at a path, or the page.
pub(super) fn find(path: &str) -> Option<Asset> {
    let found = ASSETS.iter().find(|(name, ..)| *name == path).copied();
    let is_file = path.starts_with("/js/") || path.rsplit('/').next().is_some_and(|last| last.contains('.'));
    // Ids of instances may have dots in them.
    found.or_else(|| (!is_file || path.starts_with("/i/")).then_some(PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_together_are_small() {
        let bytes: usize = ASSETS.iter().chain([&PAGE]).map(|(_, _, text)| text.len()).sum();
        assert!(bytes < 150 * 1024, "{bytes}");
    }

    #[test]
    fn no_script_makes_markup_or_code_of_texts() {
        let ways = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "srcdoc",
            "createContextualFragment",
            "DOMParser",
            "javascript:",
            "http://",
            "https://",
        ];
        for (path, _, text) in ASSETS.iter().filter(|(_, media_type, _)| *media_type == SCRIPT) {
            // The names of the SVG elements are an address that nobody fetches.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            let way = ways.iter().find(|way| text.contains(**way));
            assert_eq!(way, None, "{path}");
        }
    }

    #[test]
    fn the_page_has_no_script_or_style_of_its_own() {
        let text = PAGE.2;
        assert!(!text.contains("<style") && !text.contains("style=") && !text.contains("onclick"), "{text}");
        assert_eq!(
            text.matches("<script").count(),
            text.matches("<script type=\"module\" src=\"/js/").count()
        );
    }

    #[test]
    fn pages_are_told_from_files() {
        assert_eq!(find("/instances").unwrap().0, "/");
        assert_eq!(find("/i/report.pdf").unwrap().0, "/");
        assert_eq!(find("/js/app.js").unwrap().0, "/js/app.js");
        assert!(find("/js/nothing.js").is_none() && find("/robots.txt").is_none());
    }
}
