// Words of the widgets that do not fit where they stand.
() => {
    const pen = document.createElement('canvas').getContext('2d');
    const cut = [];
    const texts = '.widget-label, .widget-readout, .widget-html-content, .widget-button';
    for (const shown of document.querySelectorAll(texts))
        if (shown.offsetParent && shown.scrollWidth > shown.clientWidth + 1) cut.push(shown.innerText);
    for (const list of document.querySelectorAll('.widget-dropdown select')) {
        const style = getComputedStyle(list);
        pen.font = style.font;
        const room = list.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
        for (const option of list.options)
            if (list.offsetParent && pen.measureText(option.text).width > room) cut.push(option.text);
    }
    return cut;
}
