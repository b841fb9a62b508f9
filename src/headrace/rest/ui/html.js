// Preact and htm, bound together once; every other module imports from here, so that the libraries have one door.
// `html` makes elements: what stands in ${} is text or an attribute's value and never becomes markup.

import htm from "./vendor/htm.js";
import { Component, h, render } from "./vendor/preact.js";

export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export { Component, render };
export const html = htm.bind(h);

// A component that is drawn again only if one of its properties has changed: events come twice a second, and most views
// show documents that stay the same.
export function pure(component) {
  return class extends Component {
    shouldComponentUpdate(next) {
      return Object.keys({ ...this.props, ...next }).some((name) => this.props[name] !== next[name]);
    }

    render(props) {
      return h(component, props);
    }
  };
}
