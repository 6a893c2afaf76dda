"""How well the texts of a page in a browser can be told from what is behind them, by the styles that it computed."""

from __future__ import annotations

from typing import Any

from support.browser import Page

WEAK = """(() => {
  const parts = text => { const n = text.match(/[\\d.]+/g).map(Number); return [n[0], n[1], n[2], n[3] ?? 1]; };
  const over = (top, below) => [0, 1, 2].map(i => top[3] * top[i] + (1 - top[3]) * below[i]).concat([1]);
  const light = colour => colour.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const colour = parts(getComputedStyle(e).backgroundColor);
      if (colour[3]) layers.push(colour);
      if (colour[3] === 1) break;
    }
    const canvas = matchMedia('(prefers-color-scheme: dark)').matches ? [18, 18, 18, 1] : [255, 255, 255, 1];
    return layers.reverse().reduce((below, top) => over(top, below), canvas);
  };
  const weak = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.textContent.trim(), element = texts.currentNode.parentElement;
    const left_out = 'script, style, option, .unseen, svg, :disabled';
    if (!text || !element.checkVisibility() || element.closest(left_out)) continue;
    const style = getComputedStyle(element), size = parseFloat(style.fontSize), back = behind(element);
    const ink = over(parts(style.color), back), [low, high] = [light(ink), light(back)].sort((a, b) => a - b);
    const contrast = (high + 0.05) / (low + 0.05);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (contrast < (large ? 3 : 4.5)) weak.push([text.slice(0, 40), element.className, contrast.toFixed(2)]);
  }
  return weak;
})()"""


def weak_texts(page: Page) -> list[Any]:
    """Those with less contrast than WCAG 2.2 asks for at level AA: text, class of its element, contrast."""
    return list(page.js(WEAK))
